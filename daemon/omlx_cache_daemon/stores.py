"""Finds the stores that run on this machine, and the one that a command means; asks all of them at
once, and again and again until the reader has seen enough."""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
    """Return the services that accept connections and serve all stores. No command that is about a
    store means one of them."""
    named = (name for place in search_places(environ) for name in sockets_in(place, SERVICE))
    return [service for service in _each(named).values() if is_listening(service.path)]


def candidates(args: argparse.Namespace) -> list[Client]:
    """Return the stores that --pid and --socket leave, whether a process listens or not, in the
    order of their process ids."""
    if args.socket is not None:
        return [Client(args.socket)]
    return [store for store in known() if args.pid in (None, store.pid)]


def chosen(args: argparse.Namespace) -> list[Client]:
    """Raises NobodyThere for no running store."""
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
    """None where a store does not answer within a second."""
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


class StoreReply(NamedTuple):
    """A store's last answer, None for nothing yet; `error` says why it does not answer now. One
    that `has_gone` does not listen any more."""

    store: Client
    answer: Any
    error: str | None = None
    has_gone: bool = False


class StoreQuestion:
    """Puts one question to stores, to each in a thread of its own: one that hangs delays no other.

    One thread may call `ask`. Mutable: `_threads`, and `_replies`, in which each thread replaces
    the reply of its own store; both by socket.
    """

    def __init__(self, question: Callable[[Client], Any], timeout: float) -> None:
        """`question` has a client that waits for each answer as long as `timeout`."""
        self._question, self._timeout = question, timeout
        self._threads: dict[str, threading.Thread] = {}
        self._replies: dict[str, StoreReply] = {}

    def ask(self, stores: Sequence[Client], seconds: float | None = None) -> list[StoreReply]:
        """Ask the stores that owe no answer, and wait for all for so long (else for longer than
        each may take). Return the latest reply of each that has given one, in the order of the
        stores. Ctrl-C ends the waiting."""
        paths = [str(store.path) for store in stores]
        for path, store in zip(paths, stores, strict=True):
            if path not in self._threads or not self._threads[path].is_alive():
                thread = threading.Thread(target=self._put, args=(path, store), daemon=True)
                self._threads[path] = thread
                thread.start()
        deadline = time.monotonic() + (self._timeout + 1 if seconds is None else seconds)
        for path in paths:
            self._threads[path].join(max(0.0, deadline - time.monotonic()))
        return [self._replies[path] for path in paths if path in self._replies]

    def _put(self, path: str, store: Client) -> None:
        before = self._replies.get(path)
        try:
            self._replies[path] = StoreReply(store, self._question(store.within(self._timeout)))
        except (CommandError, ControlError) as error:
            has_gone = isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError)
            said = str(error).removeprefix(f"{path}: ")
            self._replies[path] = StoreReply(store, before and before.answer, said, has_gone)


def say_who_is_silent(replies: Sequence[StoreReply]) -> None:
    """Name the stores that do not answer on standard error; raises NobodyThere where none does."""
    errors = [f"{reply.store.path}: {reply.error}" for reply in replies if reply.error]
    if len(errors) == len(replies):
        raise NobodyThere("; ".join(errors))
    warn({f"passed over: {text(error)}": True for error in errors})


def until_interrupted(step: Callable[[], None], seconds: float) -> None:
    """Call `step` again and again, with so many seconds between, until Ctrl-C, the normal end.

    Raises NobodyThere when a store has gone.
    """
    try:
        while True:
            step()
            sys.stdout.flush()
            time.sleep(seconds)
    except KeyboardInterrupt:
        return
    except NobodyThere as error:
        raise NobodyThere(f"the store has gone: {error}") from error
