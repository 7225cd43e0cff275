"""The connections of the status port: bounded, and none of them at another's expense."""

import socket
import threading
import time
from contextlib import suppress

from omlx_cache.status.handler import Handler
from omlx_cache.status.routes import StatusRoutes

_PLACE_SECONDS = 1.0


class Clients:
    """Answers each connection on a daemon thread, at most `most` at once.

    `_changed`, a condition, guards `_open` (in the order in which they came) and `_closed`.
    """

    def __init__(self, routes: StatusRoutes, most: int) -> None:
        self._routes, self._most = routes, most
        self._changed = threading.Condition()
        self._open: dict[threading.Thread, Handler] = {}
        self._closed = False

    def take(self, connection: socket.socket, peer: str) -> None:
        """Answer a connection, which is closed in any case. When all places are taken, the client
        that has been slowest to ask, or else to listen, is cut off for it."""
        handler = Handler(connection, peer, self._routes)
        thread = threading.Thread(
            target=self._run, args=(handler,), name="omlx-cache-status-client", daemon=True
        )
        with self._changed:
            if len(self._open) >= self._most:
                self._slowest().cut()
                self._changed.wait_for(lambda: len(self._open) < self._most, _PLACE_SECONDS)
            if self._closed or len(self._open) >= self._most:
                connection.close()
                return
            self._open[thread] = handler
        try:
            thread.start()
        except RuntimeError:
            self._forget(thread)
            connection.close()

    def _slowest(self) -> Handler:
        rank = {"reading": 0, "writing": 1, "streaming": 2}
        # Of equals the first that came: `min` keeps the order.
        return min(self._open.values(), key=lambda handler: rank[handler.state])

    def _run(self, handler: Handler) -> None:
        try:
            handler.run()
        finally:
            self._forget(threading.current_thread())

    def _forget(self, thread: threading.Thread) -> None:
        with self._changed:
            self._open.pop(thread, None)
            self._changed.notify_all()

    def close(self, timeout: float) -> None:
        """Cut all connections and join their threads, for at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            left = dict(self._open)
        for handler in left.values():
            handler.cut()
        for thread in left:
            with suppress(RuntimeError):
                thread.join(max(0.0, deadline - time.monotonic()))

    def abandon(self) -> None:
        """Close this process's descriptors: for the child of a fork, where no thread runs."""
        for handler in list(self._open.values()):
            handler.connection.close()
        self._open.clear()
