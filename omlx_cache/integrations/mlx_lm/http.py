"""The HTTP side: mlx-lm's handler within limits, and a listener that ends within a deadline."""

import json
import logging
import math
import resource
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.server import ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from mlx_lm.server import APIHandler, CompletionRequest, get_system_fingerprint

from omlx_cache.control.handler import linger
from omlx_cache.control.serialization import encoded
from omlx_cache.integrations.lanes import furthest
from omlx_cache.integrations.mlx_lm.models import served_as
from omlx_cache.integrations.mlx_lm.requests import (
    BadRequest,
    Refused,
    SentAnswer,
    TooLarge,
    Unavailable,
)
from omlx_cache.mlx_lm_versions import has_images
from omlx_cache.status.answer import JSON, Answer
from omlx_cache.status.prefix_lookup import MOST_KEYS, by_tier, described
from omlx_cache.status.routes import LOOKUP, Routes, is_status_path
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import KeyChain, as_tokens

_log = logging.getLogger(__name__)

CONNECTIONS = 1024
"""Connections that are served at once; the system's queue holds more."""
_CLIENT_SECONDS = 60.0
"""Seconds that a client may take to send or read a piece."""
_STATUS_SECONDS = 10.0
_POLL_SECONDS = 0.1
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 1 << 30


class Handler(APIHandler):  # type: ignore[misc]
    """Answers one request of one connection, and ends it. `_has_begun` says whether headers were
    sent, `_is_unread` that the client may still be sending. `_sent` is the answer to the messages
    of `_request`, and `_is_whole` whether it is complete."""

    server: "HttpServer"
    timeout = _CLIENT_SECONDS
    _has_begun = False
    _is_unread = False
    _is_whole = False
    _headers_buffer: list[bytes]

    def do_GET(self) -> None:
        status = self.server.status
        if status is None or not is_status_path(self.path):
            super().do_GET()
        else:
            self._show(
                status.answer(self.command, self.path, self.headers, str(self.client_address[0]))
            )

    do_HEAD = do_GET

    def do_POST(self) -> None:
        coming, thread = self.response_generator.coming, threading.get_ident()
        try:
            self._check_length()
            if self.path == LOOKUP and self.server.status is not None:
                self._look_up(self.server.status)
            else:
                # A client waits from now on, and not from when its body is understood.
                coming.add(thread)
                super().do_POST()
        except Refused as error:
            # First: a client that left, with an OSError, may have closed its half alone.
            self._refuse(error)
        except OSError:
            raise
        except Exception as error:
            # Before a request is understood, its client is who can help.
            self._refuse(BadRequest(f"{type(error).__name__}: {error}"))
        finally:
            coming.discard(thread)

    def _check_length(self) -> None:
        # mlx-lm rejects a length that is no number.
        most = self.server.body_bytes
        with suppress(ValueError):
            length = int(self.headers.get("Content-Length") or 0)
            if length < 0:
                raise BadRequest("Content-Length must be 0 or more")
            if length > most:
                raise TooLarge(
                    f"the body must have at most {most} bytes (serve --max-body-bytes), "
                    f"not {length}"
                )

    def _look_up(self, status: Routes) -> None:
        no = status.refused(self.headers, str(self.client_address[0]))
        if no is not None:
            self._is_unread = True
            return self._show(no)
        length = int(self.headers.get("Content-Length") or 0)
        try:
            body = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"Invalid JSON in request body: {error}") from None
        return self._show(
            Answer(200, JSON, encoded(look_up(self.server.store, self.response_generator, body)))
        )

    def _show(self, answer: Answer) -> None:
        self.connection.settimeout(_STATUS_SECONDS)
        # No header for other origins: what mlx-lm sends with its answers has no place here.
        answer.send(self)

    def handle_completion(self, request: Any, stop_words: list[str]) -> None:
        bias = {f"logit_bias of {token}": n for token, n in (self.logit_bias or {}).items()}
        for name, value in {**self.body, **bias}.items():
            # JSON has no such numbers, Python reads them, and sampling ends with them.
            if isinstance(value, float) and not math.isfinite(value):
                raise BadRequest(f"{name} must be a finite number, not {value}")
        if self.requested_model == "default_model" and not self.response_generator.cli_args.model:
            raise BadRequest("no default_model: start serve with --model, or name a model")
        # Without a reference to this handler: an answered request would wait for the collector.
        request.has_left = partial(_has_left, self.connection)
        self._request, self._sent = request, SentAnswer()
        try:
            with self.server.answering():
                super().handle_completion(request, stop_words)
            self._is_whole = True
        except (OSError, Refused):
            raise
        except Exception as error:
            _log.exception("a request ended by an error")
            raise Refused(f"{type(error).__name__}: {error}") from error

    def handle_chat_completions(self) -> Any:
        messages = self.body.get("messages")
        if not (isinstance(messages, list) and all(isinstance(m, dict) for m in messages)):
            raise BadRequest('messages must be a list of objects with "role" and "content"')
        return super().handle_chat_completions()

    def generate_response(self, *arguments: Any, **options: Any) -> Any:
        response = super().generate_response(*arguments, **options)
        self._sent.add(response)
        if self._sent.finish_reason is not None:
            # Before the client has it: its next request may be quick.
            kept = self.response_generator.reasoning
            asked = self._request
            kept.answered(asked.messages, self._sent.message, asked.tools)
        return response

    def _refuse(self, error: Refused) -> None:
        """Send the reason; as an event of a stream that has begun."""
        self._is_unread = True
        if not self._has_begun:
            self._headers_buffer = []
            self._set_completion_headers(error.status)
            content = json.dumps({"error": str(error)}).encode()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        elif self.stream:
            told = json.dumps({"error": {"message": str(error), "code": error.status}})
            self.wfile.write(f"data: {told}\n\n".encode())

    def _set_completion_headers(self, status_code: int = 200) -> None:
        # mlx-lm answers 404 whatever went wrong before the first token.
        error = sys.exc_info()[1]
        super()._set_completion_headers(error.status if isinstance(error, Refused) else status_code)

    def flush_headers(self) -> None:
        self._has_begun = True
        super().flush_headers()

    def finish(self) -> None:
        super().finish()
        if self._is_unread:
            linger(self.connection, _LINGER_SECONDS, _LINGER_BYTES)
        if self._is_whole:
            # Later work is no part of the answer: its client shall not wait for it.
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)
            self.response_generator.expect(self._request, self._sent)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("%s %s", self.address_string(), format % args)


class HttpServer(ThreadingHTTPServer):
    """Listens on a bound socket, which it owns. Raises OSError when another process listens there
    by now. `_changed` guards `_answering`, the count of requests that were received whole and are
    in flight."""

    # The system reduces it to its own limit: 4096 on Linux, 128 on macOS.
    request_queue_size = 4096
    # They end with the process.
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        bound: socket.socket,
        responses: Any,
        body_bytes: int,
        store: BlockStore,
        status: Routes | None = None,
    ) -> None:
        self.body_bytes, self.store, self.status = body_bytes, store, status
        self._responses = responses
        self._places = threading.Semaphore(_most_connections())
        self._changed = threading.Condition()
        self._answering = 0
        self._is_ending = False
        self.address_family = bound.family
        # Asked once: it names the machine and its software.
        handler = partial(Handler, responses, system_fingerprint=get_system_fingerprint())
        super().__init__(bound.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.server_activate()

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread; waits for a place, with the next clients in the system's queue."""
        while not self._places.acquire(timeout=_POLL_SECONDS):
            if self._is_ending:
                return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
            # Its client has the answer, and waits for nothing.
            self._responses.check_tokenizer()
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client may cause an OSError.
        is_theirs = isinstance(sys.exc_info()[1], OSError)
        _log.log(logging.DEBUG if is_theirs else logging.ERROR, "a connection ended", exc_info=True)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a request as in flight while the block runs; raises Unavailable at the end."""
        with self._changed:
            if self._is_ending:
                raise Unavailable("the server is ending")
            self._answering += 1
        try:
            yield
        finally:
            with self._changed:
                self._answering -= 1
                self._changed.notify_all()

    def stop_listening(self) -> None:
        with self._changed:
            self._is_ending = True
        if self.status is not None:
            self.status.close()
        self.shutdown()
        self.socket.close()

    def wait(self, seconds: float, hurry: threading.Event) -> bool:
        """Block until no request is in flight; False after `seconds`, or soon after `hurry`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._answering and not hurry.is_set():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, _POLL_SECONDS))
            return not self._answering


def _has_left(connection: socket.socket) -> bool:
    """Return True when the client has closed its connection, or its half."""
    poll = select.poll()
    try:
        poll.register(connection, select.POLLIN)
        return bool(poll.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True


def _most_connections() -> int:
    """Raise this process's limit of descriptors to the system's, and return how many connections
    leave enough of them to the cold tier."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CONNECTIONS if hard == resource.RLIM_INFINITY else min(4 * CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(CONNECTIONS, soft // 2))


def look_up(store: BlockStore, responses: Any, body: Any) -> Mapping[str, object]:
    """Return how much of a prompt a response generator could restore, marking nothing as used;
    raises Refused. Any thread may ask. A router needs neither tokeniser nor chat template then."""
    if not isinstance(body, dict) or not (body.get("messages") or body.get("prompt")):
        raise BadRequest("the body must be an object with messages or a prompt")
    messages, prompt = body.get("messages") or [], body.get("prompt", "")
    try:
        if has_images(messages):
            raise BadRequest("a prompt with images cannot be looked up")
        key = responses.model_provider.model_key
        if key is None or not served_as(key, body.get("model")):
            # Another one would have to be loaded: nothing of it is in memory.
            return {**described(store, None), **by_tier(())}
        kind, tools = "chat" if messages else "text", body.get("tools") or None
        request = CompletionRequest(kind, prompt, messages, tools, body.get("role_mapping"))
        options = SimpleNamespace(chat_template_kwargs=body.get("chat_template_kwargs"))
        tokens = as_tokens(responses.tokens_of(request, options))
        store.refresh()
        point, chain = furthest(responses.cache.lanes_of(key), tokens, asks=False)
        found = {
            **described(store, None if chain is None else chain.namespace),
            "prompt_tokens": len(tokens),
            **by_tier(use.info for use in next(iter(point.uses.values()), ())),
        }
        return found if chain is None else {**found, "keys": _keys(chain)}
    except Refused:
        raise
    except Exception as error:
        _log.debug("a lookup failed", exc_info=True)
        raise Unavailable(f"it cannot be told now: {type(error).__name__}") from error


def _keys(chain: KeyChain) -> list[str]:
    """Return some of a chain's boundaries, the last one too, for `GET /lookup` of others."""
    blocks = len(chain) // chain.block_size
    step = -(-blocks // MOST_KEYS) or 1
    return [chain.key(n * chain.block_size).hex() for n in reversed(range(blocks, 0, -step))]
