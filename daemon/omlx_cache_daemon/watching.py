"""Asking stores: all of them at once, and again and again until the reader has seen enough."""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from omlx_cache.control.errors import ControlError
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import CommandError, NobodyThere
from omlx_cache_daemon.render import text, warn


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
