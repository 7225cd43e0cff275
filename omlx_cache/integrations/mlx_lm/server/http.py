"""The HTTP side: counts requests under way, stops without cutting them off."""

import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from typing import Any

from mlx_lm.server import APIHandler, get_system_fingerprint

from omlx_cache.integrations.mlx_lm.server.requests import BadRequest, check_body

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
    """mlx-lm's handler, and 400 for what would end the generation thread.

    `inflight` is set by the server that makes it.
    """

    inflight: Inflight

    def do_POST(self) -> None:
        with self.inflight.one():
            try:
                super().do_POST()
            except (BrokenPipeError, ConnectionResetError):
                _log.info("the client has gone")

    def validate_model_parameters(self) -> None:
        """Raise ValueError for a body that cannot be answered; mlx-lm sends its text."""
        check_body(self.body, chat=self.path != "/v1/completions")
        super().validate_model_parameters()

    def _set_completion_headers(self, status_code: int = 200) -> None:
        # mlx-lm answers 404 whatever went wrong before the first token.
        refused = isinstance(sys.exc_info()[1], BadRequest)
        super()._set_completion_headers(400 if refused else status_code)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s %s", self.address_string(), format % args)


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
        raise OSError(f"cannot listen on {host}, port {port}: {why}") from error
    return bound


class HttpServer(ThreadingHTTPServer):
    """Listens on a bound socket, which it owns, and answers with a response generator.

    Raises OSError when another process listens there by now. Mutable: `_open`, guarded by `_lock`.
    """

    # So that `hang_up` joins them: what they hold of a request is freed before the process ends.
    daemon_threads = False

    def __init__(self, bound: socket.socket, responses: Any) -> None:
        self.inflight = Inflight()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.address_family = bound.family
        fingerprint = get_system_fingerprint()
        inflight = self.inflight

        class Handler(_Handler):
            def __init__(self, *args: Any, **options: Any) -> None:
                self.inflight = inflight
                super().__init__(responses, *args, system_fingerprint=fingerprint, **options)

        super().__init__(bound.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_activate()

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
