"""Where processes are found: the runtime directories and what lies in them."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from omlx_cache.control.paths import candidates, search_places, services_in, sockets_in, why_unseen
from omlx_cache_daemon.client import is_listening
from omlx_cache_daemon.doctor.context import Context
from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_storage.private import is_running, trouble


def places(context: Context) -> list[Finding]:
    """The runtime directories can be looked into, and are this user's alone."""
    found = []
    for place in search_places(context.environ):
        why = why_unseen(place)
        if why:
            found.append(
                Finding(
                    "warning",
                    f"{place} {why}",
                    "stores that listen there are not found",
                    f"ls -ld {place}; or set OMLX_CACHE_RUNTIME_DIR",
                )
            )
        elif place.is_dir() and (wrong := trouble(place, place.lstat(), allowed=0o700)):
            found.append(
                Finding(
                    "warning",
                    wrong,
                    "a store refuses it when other files than sockets lie there",
                    f"chmod 700 {place}",
                    _closing(place) if _holds_only_sockets(place) else None,
                )
            )
    if not any(_is_usable(place) for place in candidates(context.environ)):
        found.append(
            Finding(
                "error",
                "there is no runtime directory that a store could use",
                "no command would reach it",
                "set OMLX_CACHE_RUNTIME_DIR to a short path of your own",
            )
        )
    return found


def dead(context: Context) -> list[Finding]:
    """No socket is left of a process that is gone."""
    left: list[Path] = []
    for place in search_places(context.environ):
        for name in [*sockets_in(place), *services_in(place)]:
            if not is_running(name.pid) and not is_listening(name.path):
                left.append(name.path)
    if not left:
        return []
    return [
        Finding(
            "note",
            f"{len(left):,} sockets or links are left of processes that are gone: {left[0]}",
            "the next store that starts removes those of stores",
            "omlx-cache doctor --fix",
            lambda: _remove(left),
        )
    ]


def _is_usable(place: Path) -> bool:
    if place.is_dir():
        return os.access(place, os.W_OK | os.X_OK)
    return place.parent.is_dir() and os.access(place.parent, os.W_OK | os.X_OK)


def _holds_only_sockets(place: Path) -> bool:
    return all(stat.S_ISSOCK(path.lstat().st_mode) or path.is_symlink() for path in place.iterdir())


def _closing(place: Path) -> Callable[[], str]:
    def close() -> str:
        place.chmod(0o700)
        return f"chmod 700 {place}"

    return close


def _remove(left: list[Path]) -> str:
    for path in left:
        path.unlink(missing_ok=True)
    return f"{len(left):,} removed"
