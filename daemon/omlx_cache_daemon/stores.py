"""Finds the stores that run on this machine, and the one that a command means."""

import argparse
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from omlx_cache.control.errors import ControlError
from omlx_cache.control.socket_paths import (
    SERVICE,
    SocketName,
    is_listening,
    search_places,
    sockets_in,
    why_unseen,
)
from omlx_cache.settings.names import SOCKET_VARIABLE
from omlx_cache_daemon.argument_types import complete_by, positive_count, positive_number
from omlx_cache_daemon.client import DEFAULT_TIMEOUT, Client
from omlx_cache_daemon.errors import CommandError, NobodyThere, UsageError
from omlx_cache_daemon.render import text, warn

if TYPE_CHECKING:
    from omlx_cache.control.replies import ProcessRow

_INTRODUCTION_SECONDS = 1.0


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add --pid, --socket and --timeout."""
    which = parser.add_mutually_exclusive_group()
    complete_by(
        lambda prefix, args: [str(store.pid) for store in running()],
        which.add_argument("--pid", type=positive_count, help="the store in this process"),
    )
    which.add_argument("--socket", type=Path, metavar="PATH", help="the store at this socket")
    parser.add_argument(
        "--timeout",
        type=positive_number,
        default=DEFAULT_TIMEOUT,
        metavar="SECONDS",
        help="how long to wait for an answer (default: %(default)g)",
    )


def running(environ: Mapping[str, str] = os.environ) -> list[Client]:
    """Return the stores that accept connections, of every session of this user, in the order of
    their process ids."""
    return [store for store in known(environ) if is_listening(store.path)]


def services(environ: Mapping[str, str] = os.environ) -> list[Client]:
    """Return the services that accept connections and serve all stores, in the order of their
    process ids. No command that is about a store means one of them."""
    named = (name for place in search_places(environ) for name in sockets_in(place, SERVICE))
    return [service for service in _each(named).values() if is_listening(service.path)]


def candidates(args: argparse.Namespace) -> list[Client]:
    """Return the stores that --pid and --socket leave, whether a process listens or not, in the
    order of their process ids."""
    if args.socket is not None:
        return [Client(args.socket)]
    return [store for store in known() if args.pid in (None, store.pid)]


def chosen(args: argparse.Namespace) -> list[Client]:
    """Return the running stores that --pid and --socket leave; raises NobodyThere for none."""
    stores = [store for store in candidates(args) if is_listening(store.path)]
    if not stores and args.socket is not None:
        raise NobodyThere(f"{args.socket}: no store listens there")
    if not stores:
        whose, helps = "no store is running", "start one with omlx-cache serve"
        if args.pid is not None:
            whose, helps = f"process {args.pid} has no store", "omlx-cache ps shows those that run"
        looked = ", ".join(map(_place, search_places()))
        raise NobodyThere(f"{whose} (looked in {looked}); {helps}")
    return stores


def passed_over() -> list[str]:
    """Return the runtime directories that could not be looked into, each with the reason."""
    return [_place(directory) for directory in search_places() if why_unseen(directory)]


def the_one(args: argparse.Namespace, *, on_disk: bool = False) -> Client:
    """Return a client of the store that the command line means; raises UsageError for several.

    With `on_disk` it is about a directory. Stores without one are skipped, with a note on standard
    error, and of several that share one any will do.
    """
    stores = chosen(args)
    if len(stores) == 1:
        return stores[0].within(args.timeout)
    asked = [(store, introduced(store)) for store in stores]
    if on_disk:
        keeping = [(store, row) for store, row in asked if row is None or row.cold_dir is not None]
        # One that does not say has another directory than all others.
        used = [str(store.path) if row is None else row.cold_dir for store, row in keeping]
        if len({os.path.realpath(directory or "") for directory in used}) == 1:
            passed = [f"--pid {row.pid}" for _, row in asked if row and row.cold_dir is None]
            warn({f"passed over, without a directory: {', '.join(passed)}": passed})
            return keeping[0][0].within(args.timeout)
    lines = [
        f"  --pid {store.pid if row is None else row.pid} or --socket {store.path}: "
        + ("does not answer" if row is None else text(row.title))
        for store, row in asked
    ]
    raise UsageError("\n".join([f"{len(stores)} stores are running; choose one with", *lines]))


def introduced(store: Client) -> "ProcessRow | None":
    """Return a store's description of itself, None where it does not answer within a second."""
    try:
        return store.within(_INTRODUCTION_SECONDS).process()
    except (CommandError, ControlError):
        return None


def known(environ: Mapping[str, str] = os.environ) -> list[Client]:
    """Return the sockets of this user's stores, whether a process listens or not, in the order of
    their process ids."""
    found = _each(name for place in search_places(environ) for name in sockets_in(place))
    setting = environ.get(SOCKET_VARIABLE, "").strip()
    if setting.lower() not in ("", "auto", "off"):
        # Only here: to import it takes a tenth of `ps`.
        from omlx_cache.settings.machine import expand

        path = expand(setting, Path.home())
        found.setdefault(os.path.realpath(path), Client(path))
    return sorted(found.values(), key=lambda store: store.pid or 0)


def _each(names: Iterable[SocketName]) -> dict[str, Client]:
    """Return each process once: it may be found by its socket and by a link to it."""
    found: dict[str, Client] = {}
    for name in names:
        real = os.path.realpath(name.path)
        path = Path(real) if name.path.is_symlink() else name.path
        found.setdefault(real, Client(path, name.pid))
    return found


def _place(directory: Path) -> str:
    why = why_unseen(directory)
    return f"{directory}, which {why}" if why else str(directory)
