"""mlx-lm's HTTP handler, with an answer for whatever a client sends."""

import io
import json
import logging
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from mlx_lm.server import APIHandler

from omlx_cache.control.answers import encoded
from omlx_cache.integrations.mlx_lm.server.bodies import parse_body
from omlx_cache.integrations.mlx_lm.server.gate import Gate
from omlx_cache.integrations.mlx_lm.server.limits import Limits
from omlx_cache.integrations.mlx_lm.server.offered import offered
from omlx_cache.integrations.mlx_lm.server.receiving import (
    Incoming,
    body_length,
    linger,
    read_body,
)
from omlx_cache.integrations.mlx_lm.server.refusals import BadRequest, Refused, TooSlow, Unavailable
from omlx_cache.integrations.mlx_lm.server.requests import check_body
from omlx_cache.status.answer import JSON, Answer
from omlx_cache.status.routes import LOOKUP, Routes, is_status_path

_log = logging.getLogger(__name__)

WRITE_SECONDS = 60.0
STATUS_SECONDS = 10.0
"""What a client may take to read a status, or a piece of a stream of events."""
_TEXT = "/v1/completions"
_MODELS = "/v1/models"
_HEALTH = {True: "ok", False: "unavailable"}
_SHOWN = 200
_PATHS = (_TEXT, "/v1/chat/completions", "/chat/completions")
_CLIENTS_DOING = {501: 405, 505: 400}


class Handler(APIHandler):  # type: ignore[misc]
    """Answers one request of one connection, and ends it.

    `gate`, `limits` and `status` (None unless asked for) are set by the server that makes it.
    `_flushed` says whether a status has been sent, `_unread` that the client may still be sending.
    """

    gate: Gate
    limits: Limits
    status: Routes | None = None
    _flushed = False
    _unread = False
    _parsed: dict[str, Any]

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile: Any = io.BufferedReader(Incoming(self.connection, self.limits))

    def finish(self) -> None:
        super().finish()
        linger(self.connection, self._unread)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        try:
            if self.status is not None and is_status_path(self.path):
                self._show_status()
            elif path == "/health":
                healthy = self.response_generator.is_healthy
                self._send(200 if healthy else 503, {"status": _HEALTH[healthy]})
            elif path.rstrip("/") == _MODELS:
                names = offered(self.response_generator.model_provider)
                self._send(200, {"object": "list", "data": [self._model(name) for name in names]})
            elif path.startswith(f"{_MODELS}/"):
                self._answer_model(unquote(path.removeprefix(f"{_MODELS}/")))
            else:
                self._send(404, {"error": f"there is nothing at {path[:_SHOWN]}"})
        except (ConnectionError, TimeoutError):
            _log.info("the client has gone")

    def do_HEAD(self) -> None:
        """Answer as for GET, without the content."""
        self.do_GET()

    def _show_status(self) -> None:
        """Answer a status path, on this connection's own thread; generation is not asked."""
        assert self.status is not None
        peer = str(self.client_address[0])
        self._show(self.status.answer(self.command, self.path, self.headers, peer))

    def _look_up(self) -> None:
        """Say how much of a prompt could be restored, to whom a status path is answered; on this
        connection's own thread."""
        assert self.status is not None
        peer = str(self.client_address[0])
        no = self.status.refused(self.headers, peer)
        if no is not None:
            self._unread = True
            return self._show(no)
        length = body_length(self.headers, self.limits.body_bytes)
        with self.gate.hold(length):
            body = parse_body(self._read(length), self.limits.json_values)
            lookup = getattr(self.response_generator, "lookup", None)
            if lookup is None:
                raise Unavailable("several ranks keep no prompts that could be looked up")
            self._show(Answer(200, JSON, encoded(lookup(body))))
        return None

    def _show(self, answer: Answer) -> None:
        """Send an answer of the status paths."""
        self.connection.settimeout(STATUS_SECONDS)
        try:
            self.send_response(answer.status)
            for name, value in answer.all_headers().items():
                self.send_header(name, value)
            # No header for other origins: what mlx-lm sends with its answers has no place here.
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
                for piece in answer.stream or ():
                    self.wfile.write(piece)
        finally:
            answer.release()

    def _answer_model(self, name: str) -> None:
        if name in offered(self.response_generator.model_provider):
            self._send(200, self._model(name))
        else:
            self._send(404, {"error": f"no model here is called {name[:_SHOWN]}"})

    def _model(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self.created, "owned_by": "omlx-cache"}

    def do_POST(self) -> None:
        try:
            if self.path == LOOKUP and self.status is not None:
                self._look_up()
                return
            if self.path not in _PATHS:
                self._unread = True
                super().do_POST()
                return
            length = body_length(self.headers, self.limits.body_bytes)
            with self.gate.hold(length):
                self._parsed = parse_body(self._read(length), self.limits.json_values)
                self.connection.settimeout(WRITE_SECONDS)
                with self.gate.answering(self.connection):
                    self._answer()
        except Refused as error:
            self._refuse(error)
        except (ConnectionError, TimeoutError):
            _log.info("the client has gone")

    def _read(self, length: int) -> bytearray:
        try:
            return read_body(self.rfile, length)
        except TooSlow:
            if self.gate.closed:
                raise Unavailable("the server is ending") from None
            raise

    def _answer(self) -> None:
        # What mlx-lm reads and parses is this; `body` is what was parsed before.
        self.rfile = io.BytesIO(b"{}")
        self.headers.replace_header("Content-Length", "2")
        super().do_POST()

    @property
    def body(self) -> dict[str, Any]:
        return self._parsed

    @body.setter
    def body(self, _: Any) -> None:
        """Parsed before, within limits that mlx-lm does not have."""

    def validate_model_parameters(self) -> None:
        """Raise BadRequest for a body that cannot be answered."""
        check_body(self.body, chat=self.path != _TEXT)
        try:
            super().validate_model_parameters()
        except ValueError as error:
            raise BadRequest(str(error)) from error

    def handle_completion(self, request: Any, stop_words: list[str]) -> None:
        try:
            super().handle_completion(request, stop_words)
        except (ConnectionError, TimeoutError):
            raise
        except Refused as error:
            self._refuse(error)
        except Exception as error:
            _log.exception("a request ended by an error")
            self._refuse(Refused(f"{type(error).__name__}: {error}"))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is none: a garbled line, too many headers, another method."""
        code = _CLIENTS_DOING.get(code, code)
        text = message or self.responses.get(code, ("the request is not understood",))[0]
        # A line that is none passes for HTTP/0.9, whose answers have no status.
        self.request_version = "HTTP/1.0"
        self.close_connection = True
        self._unread = True
        self._send_text(code, text)

    def _refuse(self, error: Refused) -> None:
        """Send the reason, as far as the answer has not begun; as an event of a stream that has."""
        self._unread = True
        try:
            if not self._flushed:
                self._headers_buffer: list[bytes] = []
                self._send_text(error.status, str(error), error.retry_after)
            elif self.stream:
                told = {"error": {"message": str(error), "code": error.status}}
                self.wfile.write(f"data: {json.dumps(told)}\n\n".encode())
        except (ConnectionError, TimeoutError):
            _log.info("the client has gone")

    def _send_text(self, code: int, text: str, retry_after: float | None = None) -> None:
        self._send(code, {"error": text}, retry_after)

    def _send(
        self, code: int, document: Mapping[str, object], retry_after: float | None = None
    ) -> None:
        """Send a whole answer; for HEAD, its headers."""
        content = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if retry_after is not None:
            self.send_header("Retry-After", str(max(1, round(retry_after))))
        if getattr(self, "headers", None) is not None:
            self._set_cors_headers()
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _set_completion_headers(self, status_code: int = 200) -> None:
        # mlx-lm answers 404 whatever went wrong before the first token.
        error = sys.exc_info()[1]
        status = error.status if isinstance(error, Refused) else status_code
        super()._set_completion_headers(status)
        if isinstance(error, Refused) and error.retry_after is not None:
            self.send_header("Retry-After", str(max(1, round(error.retry_after))))

    def flush_headers(self) -> None:
        self._flushed = True
        super().flush_headers()

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s %s", self.address_string(), format % args)
