"""The HTTP side: takes any number of connections, and ends within a deadline, whatever they do."""

import errno
import logging
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any

from mlx_lm.server import get_system_fingerprint

from omlx_cache.integrations.mlx_lm.server.gate import Gate
from omlx_cache.integrations.mlx_lm.server.handler import Handler
from omlx_cache.integrations.mlx_lm.server.limits import Limits, most_connections
from omlx_cache.status.routes import Routes

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_HANDLERS_SECONDS = 5.0
_QUEUE_SECONDS = 1.0


def bind(host: str, port: int) -> socket.socket:
    """Return a socket with this address (port 0: any free one), which does not listen yet.

    Raises OSError when the address cannot be had.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        bound = socket.socket(infos[0][0], socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(infos[0][4])
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise OSError(f"cannot listen on {host}, port {port}: {why}{_hint(error)}") from error
    return bound


def _hint(error: Exception) -> str:
    """Return what a person may do about it, where that is known."""
    if getattr(error, "errno", None) != errno.EADDRINUSE:
        return ""
    return "; `omlx-cache ps` shows running servers, and --port takes another"


class HttpServer(ThreadingHTTPServer):
    """Listens on a bound socket, which it owns, and answers with a response generator.

    Raises OSError when another process listens there by now. At most `most_connections` are served
    at once; the system's queue holds more. `_open` and `_handlers` are guarded by `_lock`.
    """

    # The system shortens it to what it gives: 4096 on Linux, 128 on macOS.
    request_queue_size = 4096
    # `hang_up` joins them, within a deadline, where Python would wait for ever.
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        bound: socket.socket,
        responses: Any,
        limits: Limits,
        status: Routes | None = None,
    ) -> None:
        self.status = status
        self.gate = gate = Gate(limits)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._handlers: set[threading.Thread] = set()
        self._places = threading.Semaphore(most_connections())
        self._ending = threading.Event()
        self.address_family = bound.family
        fingerprint = get_system_fingerprint()

        class Bound(Handler):
            def __init__(self, *args: Any, **options: Any) -> None:
                self.gate, self.limits, self.status = gate, limits, status
                super().__init__(responses, *args, system_fingerprint=fingerprint, **options)

        super().__init__(bound.getsockname(), Bound, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_activate()

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}"

    def serve_forever(self, poll_interval: float = _POLL_SECONDS) -> None:
        super().serve_forever(poll_interval)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread; waits for a place, with the next clients in the system's queue."""
        while not self._places.acquire(timeout=_POLL_SECONDS):
            if self._ending.is_set():
                return self.shutdown_request(request)
        thread = threading.Thread(target=self._answer, args=(request, client_address), daemon=True)
        with self._lock:
            self._open.add(request)
            self._handlers.add(thread)
        try:
            thread.start()
        except RuntimeError:
            self._forget(request, thread)
            raise

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            self._forget(request, threading.current_thread())

    def _forget(self, request: Any, thread: threading.Thread) -> None:
        with self._lock:
            self._open.discard(request)
            self._handlers.discard(thread)
        self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong on a connection; what a client may cause is no error of ours."""
        if isinstance(sys.exc_info()[1], OSError):
            _log.debug("a connection ended", exc_info=True)
        else:
            _log.exception("a connection ended by an error")

    def stop_listening(self) -> None:
        """Take no more connections, and end those whose request is not there yet. Who is in the
        system's queue is refused; who comes later finds nobody."""
        self._ending.set()
        self.gate.close()
        if self.status is not None:
            self.status.close()
        self.shutdown()
        self._take_queue()
        self.socket.close()
        under_way = self.gate.under_way()
        with self._lock:
            rest = self._open - under_way
        _shut(rest, socket.SHUT_RD)

    def _take_queue(self) -> None:
        """Have handlers refuse those who were not accepted yet: closing would reset them."""
        deadline = time.monotonic() + _QUEUE_SECONDS
        self.socket.setblocking(False)
        with suppress(OSError):
            while time.monotonic() < deadline:
                connection, address = self.socket.accept()
                connection.setblocking(True)
                self.process_request(connection, address)

    def hang_up(self) -> None:
        """Cut every connection that is left, and join its thread, for some seconds at most.

        To be called when nothing generates any more.
        """
        with self._lock:
            left, threads = set(self._open), set(self._handlers)
        _shut(left, socket.SHUT_RDWR)
        self.server_close()
        deadline = time.monotonic() + _HANDLERS_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _shut(connections: set[socket.socket], how: int) -> None:
    for connection in connections:
        with suppress(OSError):
            connection.shutdown(how)
