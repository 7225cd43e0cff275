"""The HTTP server of a Unix socket and of a port: bounded, and no client at another's expense."""

import errno
import logging
import os
import select
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socketserver import BaseServer, TCPServer, ThreadingMixIn
from typing import Any, Final, Literal

from omlx_cache.control.errors import ControlError
from omlx_cache.control.handler import ApiHandler
from omlx_cache.control.listener import (
    Listener,
    bind,
    listen_at,
    listen_for_all_sessions,
    peer_uid,
    remove_all,
)
from omlx_cache.control.socket_paths import candidates
from omlx_cache.settings.names import ConfigError
from omlx_cache.status.answer import is_loopback
from omlx_cache.status.routes import Operations, Routes
from omlx_cache_storage.calls import wait_in_turns

_log = logging.getLogger(__name__)

MOST_CLIENTS = 64
PARALLEL = 4
"""Requests for one path that are answered at once: those that hang on a disk leave room for other
questions."""
PLACE_SECONDS = 1.0
"""How long a client waits for the place of one that was cut off."""
HUNG_SECONDS = 1.0
"""How long `close` waits for clients that were cut off, whose operations may wait for a disk."""
_PAUSE_SECONDS = 0.5
_CLOSE_SECONDS = 5.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

State = Literal["reading", "waiting", "writing", "answering"]
_CUT_FIRST: Final[Sequence[State]] = ("reading", "waiting", "writing")
"""The states of connections that make room. One that is answered does not: its thread would stay
where it is."""


@dataclass(eq=False, slots=True)
class Connected:
    """A connection: its thread, where that is, and the path that it asks for."""

    thread: threading.Thread
    state: State = "reading"
    path: str = ""
    is_cut: bool = False


class ApiServer(ThreadingMixIn, TCPServer):
    """Answers on a listening socket, which it owns, from construction to `close`. At most `most`
    clients are served at once. A newcomer takes the place of the slowest one, so that a silent
    client costs no other one an answer. On a Unix socket (`path`) only this user is answered, on a
    port (`url`) each client that the routes allow. After a fork the child has nothing of it.

    `_changed`, a condition, guards `_open` (clients in the order in which they came), their states,
    and `_closed`.
    """

    def __init__(
        self,
        listener: Listener,
        routes: Routes,
        *,
        most: int = MOST_CLIENTS,
        credentials: Callable[[socket.socket], int] = peer_uid,
    ) -> None:
        BaseServer.__init__(self, listener.socket.getsockname(), ApiHandler)
        self.socket = listener.socket
        self.path: Path | None = next(iter(listener.files), None)
        self.routes = routes
        self._most, self._credentials = most, credentials
        self._changed = threading.Condition()
        self._open: dict[Any, Connected] = {}
        self._closed = False
        self._woken, self._wake = socket.socketpair()
        self._name = "omlx-cache-control" if self.path else "omlx-cache-status"
        self._remove = weakref.finalize(self, remove_all, listener.files)
        _servers.add(self)
        self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self.close(0.0)
            self._close_descriptors()
            raise ControlError("busy", str(error)) from error

    @property
    def url(self) -> str:
        host, port = map(str, self.server_address[:2])
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/status"

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Remove the socket's file, cut every client off and end the threads; waits at most
        `timeout` seconds for them, and `HUNG_SECONDS` for operations that may hang. Does nothing
        the second time, or after a fork."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            for connection in self._open:
                self._cut(connection)
            threads = [client.thread for client in self._open.values()]
        self._remove()
        with suppress(OSError):
            self._wake.send(b"x")
        _join(self._thread, timeout)
        deadline = time.monotonic() + min(timeout, HUNG_SECONDS)
        self.routes.close(min(timeout, HUNG_SECONDS))
        for thread in threads:
            _join(thread, max(0.0, deadline - time.monotonic()))

    def server_close(self) -> None:
        """End, as at the end of a `with` block."""
        self.close()

    def abandon(self) -> None:
        """Close this process's descriptors only: for the child of a fork, where no thread runs."""
        self._changed = threading.Condition()
        self._closed = True
        self._remove.detach()
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._close_descriptors()

    def _serve(self) -> None:
        # No `select`: it knows no descriptors beyond 1024, and a server may have them.
        waiting = select.poll()
        waiting.register(self.socket, select.POLLIN)
        waiting.register(self._woken, select.POLLIN)
        try:
            while not self._closed:
                waiting.poll()
                if not self._closed:
                    self.handle_request()
        finally:
            self._close_descriptors()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Out of descriptors, look away for a moment before that fails."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                _log.warning("%s: cannot accept: %s", self._name, error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, _PAUSE_SECONDS)
            raise

    def verify_request(self, request: Any, client_address: object) -> bool:
        if self.path is None:
            return True
        try:
            uid = self._credentials(request)
        except OSError as error:
            _log.warning("control socket: a client without credentials: %s", error)
            return False
        is_own = uid == os.geteuid()
        if not is_own:
            _log.warning("control socket: user %d was refused", uid)
        return is_own

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name=f"{self._name}-client",
            daemon=True,
        )
        with self._changed:
            if len(self._open) >= self._most:
                slow = [one for one in self._open if self._open[one].state != "answering"]
                if slow:
                    self._cut(min(slow, key=lambda one: _CUT_FIRST.index(self._open[one].state)))
                self._changed.wait_for(lambda: len(self._open) < self._most, PLACE_SECONDS)
            has_place = not self._closed and len(self._open) < self._most
            if has_place:
                self._open[request] = Connected(thread)
        if has_place:
            thread.start()
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: object) -> None:
        level = logging.DEBUG if isinstance(sys.exc_info()[1], OSError) else logging.ERROR
        _log.log(level, "%s: a client was dropped", self._name, exc_info=True)

    @contextmanager
    def turn(self, request: Any, path: str) -> Iterator[None]:
        """Wait until `PARALLEL` others at most are answered about a path; raises OSError for a
        client that is cut off meanwhile."""
        with self._changed:
            client = self._open[request]
            client.path, client.state = path, "waiting"
            self._changed.wait_for(lambda: client.is_cut or self._answered(path) < PARALLEL)
            if client.is_cut:
                raise ConnectionAbortedError("the client was cut off")
            client.state = "answering"
        try:
            yield
        finally:
            with self._changed:
                client.state = "writing"
                self._changed.notify_all()

    def _answered(self, path: str) -> int:
        return sum(c.path == path and c.state == "answering" for c in self._open.values())

    def _cut(self, connection: Any) -> None:
        self._open[connection].is_cut = True
        self._changed.notify_all()
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _close_descriptors(self) -> None:
        for one in (self.socket, self._woken, self._wake):
            one.close()


def _join(thread: threading.Thread, timeout: float) -> None:
    def has_ended(seconds: float | None) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    if thread is not threading.current_thread():
        with suppress(RuntimeError):
            wait_in_turns(has_ended, timeout)


def check_socket(setting: Literal["auto", "off"] | Path) -> None:
    if setting == "auto":
        # A current directory that is gone is no matter of configuration: it costs the socket only.
        with suppress(OSError):
            candidates()


def serve_socket(
    setting: Literal["auto", "off"] | Path,
    operations: Operations,
    *,
    is_service: bool = False,
    **options: Any,
) -> ApiServer | None:
    """Answer this user where the `socket` setting says; None for `off`. Raises ControlError when no
    runtime directory is usable or the path is taken."""
    if setting == "off":
        return None
    listener = (
        listen_for_all_sessions(is_service=is_service)
        if setting == "auto"
        else listen_at(Path(setting))
    )
    return ApiServer(listener, Routes(operations), **options)


def serve_port(
    operations: Operations,
    port: int = 0,
    token: str | None = None,
    host: str = "127.0.0.1",
    *,
    most: int = MOST_CLIENTS,
) -> ApiServer:
    """Answer at a port, 0 for any free one, on loopback unless there is a token. Raises ConfigError
    for a host that others reach, without a token, and OSError for an address that cannot be had."""
    if token is not None and not (isinstance(token, str) and token):
        raise ConfigError("the token is empty or no text: name one, or None for this machine only")
    if not isinstance(port, int) or not 0 <= port <= 65535:
        raise ConfigError(f"port must be from 0 to 65535, 0 for any free one; got {port!r}")
    bound = bind(host, port, "; port 0 takes any free one")
    if token is None and not is_loopback(str(bound.getsockname()[0])):
        bound.close()
        raise ConfigError(
            f"host {host} can be reached from other machines: give a token "
            "(OMLX_CACHE_STATUS_TOKEN), or leave the host at 127.0.0.1"
        )
    bound.setblocking(False)
    bound.listen()
    return ApiServer(Listener(bound, {}), Routes(operations, token, samples=True), most=most)


_servers: "weakref.WeakSet[ApiServer]" = weakref.WeakSet()


def _abandon_all() -> None:
    for server in list(_servers):
        server.abandon()


os.register_at_fork(after_in_child=_abandon_all)
