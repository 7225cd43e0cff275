"""Finds the stores that run on this machine, and the one that a command means."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from omlx_cache.control.errors import ControlError
from omlx_cache.control.paths import (
    SocketName,
    is_listening,
    search_places,
    services_in,
    sockets_in,
    why_unseen,
)
from omlx_cache.settings.names import SOCKET_VARIABLE
from omlx_cache_daemon.client import DEFAULT_TIMEOUT, Client
from omlx_cache_daemon.errors import NobodyThere, UsageError
from omlx_cache_daemon.options import positive_seconds
from omlx_cache_daemon.render import text

_INTRODUCTION_SECONDS = 1.0


class RunningStore(NamedTuple):
    """A socket on which somebody listens; the process id when the socket's name has it."""

    path: Path
    pid: int | None

    def client(self, timeout: float = DEFAULT_TIMEOUT) -> Client:
        return Client(self.path, timeout, self.pid)


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add --pid, --socket and --timeout."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pid", type=int, help="the store in this process")
    which.add_argument("--socket", type=Path, metavar="PATH", help="the store at this socket")
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=DEFAULT_TIMEOUT,
        metavar="SECONDS",
        help="how long to wait for an answer (default: %(default)g)",
    )


def running(environ: Mapping[str, str] = os.environ) -> list[RunningStore]:
    """Return the stores that accept connections, of every session of this user, in the order of
    their process ids."""
    found = (store for store in known(environ) if is_listening(store.path))
    return sorted(found, key=lambda store: store.pid or 0)


def services(environ: Mapping[str, str] = os.environ) -> list[RunningStore]:
    """Return the services that accept connections and serve all stores, in the order of their
    process ids. No command that is about a store means one of them."""
    named = (name for place in search_places(environ) for name in services_in(place))
    return [service for service in _each(named, set()) if is_listening(service.path)]


def candidates(args: argparse.Namespace) -> list[RunningStore]:
    """Return the stores that --pid and --socket leave, whether anybody listens or not, in the order
    of their process ids."""
    if args.socket is not None:
        return [RunningStore(args.socket, None)]
    found = (store for store in known() if args.pid in (None, store.pid))
    return sorted(found, key=lambda store: store.pid or 0)


def chosen(args: argparse.Namespace) -> list[RunningStore]:
    """Return the running stores that --pid and --socket leave; raises NobodyThere for none."""
    stores = [store for store in candidates(args) if is_listening(store.path)]
    if not stores and args.socket is not None:
        raise NobodyThere(f"{args.socket}: no store listens there")
    if not stores:
        whose = "no store is running" if args.pid is None else f"process {args.pid} has no store"
        raise NobodyThere(f"{whose} (looked in {', '.join(map(_place, search_places()))})")
    return stores


def passed_over() -> list[str]:
    """Return the runtime directories that could not be looked into, each with the reason."""
    return [_place(directory) for directory in search_places() if why_unseen(directory)]


def the_one(args: argparse.Namespace, *, on_disk: bool = False) -> Client:
    """Return a client of the store that the command line means; raises UsageError for several.

    With `on_disk` it is about a directory: stores without one are passed over, which is said on
    standard error, and of several that share one any will do.
    """
    stores = chosen(args)
    if on_disk and len(stores) > 1:
        stores = _of_one_directory(stores)
    if len(stores) > 1:
        lines = "\n".join(f"  {_introduce(store)}" for store in stores)
        raise UsageError(f"{len(stores)} stores are running; choose one:\n{lines}")
    return stores[0].client(args.timeout)


def _of_one_directory(stores: list[RunningStore]) -> list[RunningStore]:
    """Return the one to ask of stores that have the same directory, else all of them."""
    used = [(store, _directory_of(store)) for store in stores]
    keeping = [(store, directory) for store, directory in used if directory is not None]
    if len({directory for _, directory in keeping}) != 1:
        return stores
    passed = ", ".join(f"--pid {store.pid}" for store, directory in used if directory is None)
    if passed:
        sys.stderr.write(f"omlx-cache: passed over, without a directory: {passed}\n")
    return [keeping[0][0]]


def known(environ: Mapping[str, str] = os.environ) -> Iterator[RunningStore]:
    """Yield every socket of this user's stores, whether anybody listens or not."""
    seen: set[str] = set()
    yield from _each((n for place in search_places(environ) for n in sockets_in(place)), seen)
    setting = environ.get(SOCKET_VARIABLE, "").strip()
    if setting.lower() not in ("", "auto", "off"):
        # Only here: to import it takes a tenth of `ps`.
        from omlx_cache.settings.machine import expand

        path = expand(setting, Path.home())
        if os.path.realpath(path) not in seen:
            yield RunningStore(path, None)


def _each(names: Iterable[SocketName], seen: set[str]) -> Iterator[RunningStore]:
    """Yield each process once: it may be found by its socket and by a link to it."""
    for name in names:
        real = os.path.realpath(name.path)
        if real not in seen:
            seen.add(real)
            yield RunningStore(Path(real) if name.path.is_symlink() else name.path, name.pid)


def _place(directory: Path) -> str:
    why = why_unseen(directory)
    return f"{directory}, which {why}" if why else str(directory)


def _directory_of(store: RunningStore) -> str | None:
    """Return the directory of a store, None for one that says that it keeps nothing on a disk; one
    that does not say has another than all others."""
    try:
        reply = store.client(_INTRODUCTION_SECONDS).call("ps")
    except (NobodyThere, ControlError):
        return f"unknown: {store.path}"
    cold = reply.get("cold") if isinstance(reply, dict) else {}
    if not cold:
        return None if cold is None else f"unknown: {store.path}"
    directory = cold.get("dir") if isinstance(cold, dict) else None
    return os.path.realpath(directory) if isinstance(directory, str) else f"unknown: {store.path}"


def _introduce(store: RunningStore) -> str:
    pid, name = store.pid, ""
    try:
        reply = store.client(_INTRODUCTION_SECONDS).call("ping")
    except (NobodyThere, ControlError):
        name = "does not answer"
    else:
        if isinstance(reply, dict):
            pid, name = reply.get("pid", pid), text(reply.get("title"))
    return f"--pid {pid}  --socket {store.path}  {name}".rstrip()
