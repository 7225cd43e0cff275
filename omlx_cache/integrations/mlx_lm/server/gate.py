"""Counts the requests that are held, refuses more than were granted, and closes for good."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from omlx_cache.integrations.mlx_lm.server.limits import Limits
from omlx_cache.integrations.mlx_lm.server.refusals import Unavailable


class Gate:
    """A request is held from its headers on, and under way once its body is there.

    `_changed` guards `_held`, `_bytes`, `_answering` and `_closed`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._held = 0
        self._bytes = 0
        self._answering: set[socket.socket] = set()
        self._closed = False

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Count a request and its body's bytes while the block runs; raises Unavailable."""
        limits = self._limits
        with self._changed:
            if self._held >= limits.requests:
                raise Unavailable(
                    f"{limits.requests} requests are held already (serve --max-requests)", 1.0
                )
            if self._bytes and self._bytes + size > limits.held_bytes:
                raise Unavailable(
                    f"the requests that are held have {self._bytes} bytes already, and "
                    f"{limits.held_bytes} is the most (8 x serve --max-body-bytes)",
                    1.0,
                )
            self._held += 1
            self._bytes += size
        try:
            yield
        finally:
            with self._changed:
                self._held -= 1
                self._bytes -= size

    @contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Count a request as under way while the block runs; raises Unavailable once closed."""
        with self._changed:
            if self._closed:
                raise Unavailable("the server is ending")
            self._answering.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._answering.discard(connection)
                self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Let no more requests under way."""
        with self._changed:
            self._closed = True

    def under_way(self) -> set[socket.socket]:
        """Return the connections of the requests under way."""
        with self._changed:
            return set(self._answering)

    def wait(self, seconds: float, hurry: threading.Event) -> bool:
        """Block until none is under way; False after `seconds`, or soon after `hurry` is set."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._answering and not hurry.is_set():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.1))
            return not self._answering
