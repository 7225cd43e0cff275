"""The HTTP side: counts requests under way, stops without cutting them off."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from typing import Any

from mlx_lm.server import APIHandler, get_system_fingerprint

_log = logging.getLogger(__name__)


class Inflight:
    """How many requests are being answered. `_count` is guarded by `_changed`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a request for as long as the block runs."""
        with self._changed:
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def wait(self, seconds: float, hurry: threading.Event) -> bool:
        """Block until none is left; False after `seconds`, or soon after `hurry` is set."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._count and not hurry.is_set():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.1))
            return not self._count


class _Handler(APIHandler):  # type: ignore[misc]
    """mlx-lm's handler; `inflight` is set by the server that makes it."""

    inflight: Inflight

    def do_POST(self) -> None:
        with self.inflight.one():
            try:
                super().do_POST()
            except (BrokenPipeError, ConnectionResetError):
                _log.info("the client has gone")

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s %s", self.address_string(), format % args)


class HttpServer(ThreadingHTTPServer):
    """Listens on `host` and `port` (0 for any free one) and answers with a response generator.

    Raises OSError when the address cannot be had. Mutable: `_open`, guarded by `_lock`.
    """

    # So that `hang_up` joins them: what they hold of a request is freed before the process ends.
    daemon_threads = False

    def __init__(self, host: str, port: int, responses: Any) -> None:
        self.inflight = Inflight()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = infos[0][0]
        address: Any = infos[0][4]
        fingerprint = get_system_fingerprint()
        inflight = self.inflight

        class Handler(_Handler):
            def __init__(self, *args: Any, **options: Any) -> None:
                self.inflight = inflight
                super().__init__(responses, *args, system_fingerprint=fingerprint, **options)

        super().__init__(address, Handler)

    @property
    def url(self) -> str:
        """Where clients reach it."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Stop listening, cut every connection that is left, and join its thread.

        To be called when nothing generates any more.
        """
        with self._lock:
            left = list(self._open)
        for connection in left:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()
