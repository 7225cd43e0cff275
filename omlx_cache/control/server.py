"""The embedded store's control thread: answers the command line over a Unix socket."""

import contextlib
import logging
import math
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, Self

from omlx_cache.control.connection import Connection, Timeouts
from omlx_cache.control.errors import ControlError
from omlx_cache.control.frames import Request, encode_error, encode_result
from omlx_cache.control.listener import (
    Listener,
    linked,
    listen_as_service,
    listen_at,
    listen_in,
    remove_all,
)
from omlx_cache.control.paths import candidates, first_usable, is_by_name, meeting_place, prepare
from omlx_cache.control.peer import peer_uid
from omlx_cache.control.workers import Workers
from omlx_cache_storage.interrupts import wait_in_turns

Handler = Callable[[Mapping[str, object]], object]

_LOG = logging.getLogger(__name__)
_MAX_CONNECTIONS = 64
_ACCEPT_PAUSE_SECONDS = 0.5
_JOIN_SECONDS = 5.0
_EVENTS = {"reading": selectors.EVENT_READ, "writing": selectors.EVENT_WRITE}


class ControlServer:
    """Serves `handlers` on a Unix socket from a daemon thread, from construction to `close`.

    Handlers run on threads of their own: one that waits for a disk delays no other operation, and
    of one operation several run at once. Whatever a client or a handler does, the control thread
    survives and other clients are served. After a fork the child holds nothing of it, and the
    parent's socket stays.

    `_connections`, `_events` and `_accept_after` belong to the control thread; handlers append to
    `_replies`, a deque, without a lock; `_closed` is guarded by `_lock`; the rest never changes.
    """

    def __init__(
        self,
        path: Path | Listener,
        handlers: Mapping[str, Handler],
        *,
        timeouts: Timeouts | None = None,
        credentials: Callable[[socket.socket], int] = peer_uid,
        max_connections: int = _MAX_CONNECTIONS,
    ) -> None:
        listener = listen_at(Path(path)) if not isinstance(path, Listener) else path
        self.path = listener.identity.path
        self._listener = listener
        self._handlers = dict(handlers)
        self._timeouts = timeouts or Timeouts()
        self._credentials = credentials
        self._max_connections = max_connections
        self._connections: dict[socket.socket, Connection] = {}
        self._events: dict[socket.socket, int] = {}
        self._workers = Workers()
        self._replies: deque[tuple[Connection, bytes]] = deque()
        self._accept_after = 0.0
        self._lock = threading.Lock()
        self._closed = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener.socket, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._remove = weakref.finalize(self, remove_all, (listener.identity, *listener.links))
        _servers.add(self)
        self._thread = threading.Thread(target=self._serve, name="omlx-cache-control", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._closed = True
            self._remove()
            self._close_descriptors()
            raise ControlError("busy", str(error)) from error

    def close(self, timeout: float = _JOIN_SECONDS) -> None:
        """Stop the thread and remove the socket; waits at most `timeout` seconds for the thread.

        Does nothing the second time, or after a fork.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._remove()
        self._wake()
        if threading.current_thread() is not self._thread:
            wait_in_turns(self._has_ended, timeout)

    def _has_ended(self, timeout: float | None) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def abandon(self) -> None:
        """Close this process's descriptors only: for the child of a fork, where no thread runs.

        Nothing is unregistered, because the selector is shared with the parent.
        """
        self._lock = threading.Lock()
        self._closed = True
        self._remove.detach()
        self._close_descriptors()

    def _serve(self) -> None:
        try:
            while not self._closed:
                self._step()
        finally:
            self._close_descriptors()

    def _step(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            if key.fileobj is self._listener.socket:
                self._accept()
            elif isinstance(key.data, Connection):
                self._guarded(key.data, self._advance)
            else:
                self._take_replies()
        now = time.monotonic()
        for connection in [c for c in self._connections.values() if c.deadline <= now]:
            self._drop(connection)
        if self._accept_after and now >= self._accept_after:
            self._accept_after = 0.0
            self._selector.register(self._listener.socket, selectors.EVENT_READ)

    def _patience(self) -> float | None:
        times = [c.deadline for c in self._connections.values() if c.deadline < math.inf]
        if self._accept_after:
            times.append(self._accept_after)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Out of descriptors: the listener stays readable, so look away for a moment.
            _LOG.warning("control socket: cannot accept: %s", error)
            self._selector.unregister(self._listener.socket)
            self._accept_after = time.monotonic() + _ACCEPT_PAUSE_SECONDS
            return
        if not self._welcome(sock):
            sock.close()
            return
        if len(self._connections) >= self._max_connections:
            self._drop(self._least_urgent())
        connection = Connection(sock, self._dispatch, self._timeouts, time.monotonic())
        self._connections[sock] = connection
        self._watch(connection)

    def _welcome(self, sock: socket.socket) -> bool:
        try:
            uid = self._credentials(sock)
        except OSError as error:
            _LOG.warning("control socket: a client without credentials: %s", error)
            return False
        if uid != os.geteuid():
            _LOG.warning("control socket: user %d was refused", uid)
            return False
        return True

    def _least_urgent(self) -> Connection:
        return min(self._connections.values(), key=lambda c: (not c.idle, c.deadline))

    def _guarded(self, connection: Connection, step: Callable[[Connection], None]) -> None:
        try:
            step(connection)
        except Exception:
            # A fault here is this program's own; it costs one client, not the thread.
            _LOG.exception("control socket: a client was dropped")
            self._drop(connection)
        else:
            self._watch(connection)

    def _advance(self, connection: Connection) -> None:
        if connection.state == "writing":
            connection.on_writable(time.monotonic())
        elif connection.state == "reading":
            connection.on_readable(time.monotonic())

    def _watch(self, connection: Connection) -> None:
        """Ask the selector for what a connection waits for: nothing while it is answered."""
        sock, state = connection.socket, connection.state
        if state == "closed":
            self._drop(connection)
            return
        wanted = _EVENTS.get(state, 0)
        known = self._events.get(sock, 0)
        if wanted == known:
            return
        if known and wanted:
            self._selector.modify(sock, wanted, connection)
        elif wanted:
            self._selector.register(sock, wanted, connection)
        else:
            self._selector.unregister(sock)
        self._events[sock] = wanted

    def _drop(self, connection: Connection) -> None:
        self._connections.pop(connection.socket, None)
        # A closed socket has left an epoll set already; the selector's own map has not.
        if self._events.pop(connection.socket, 0):
            self._selector.unregister(connection.socket)
        connection.close()

    def _dispatch(self, connection: Connection, request: Request) -> None:
        """Have a request answered on another thread."""
        try:
            handler = self._handlers.get(request.op)
            if handler is None:
                raise ControlError("unknown_op", f"unknown operation {request.op!r}")
            self._workers.submit(request.op, partial(self._respond, connection, request, handler))
        except ControlError as error:
            connection.reply(encode_error(error), time.monotonic())

    def _respond(self, connection: Connection, request: Request, handler: Handler) -> None:
        """Carry out a request and hand its reply to the control thread. Runs on a worker."""
        # Nobody waits for the answer of a connection that has gone.
        if connection.state == "answering":
            self._replies.append((connection, self._answer(request, handler)))
            self._wake()

    def _answer(self, request: Request, handler: Handler) -> bytes:
        try:
            return encode_result(handler(request.args))
        except ControlError as error:
            return encode_error(error)
        except BaseException as error:
            # A handler's SystemExit must not end the thread either.
            _LOG.exception("control socket: operation %s failed", request.op)
            return encode_error(ControlError("failed", f"{type(error).__name__}: {error}"))

    def _take_replies(self) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            self._wake_reader.recv(4096)
        while self._replies:
            connection, frame = self._replies.popleft()
            if connection.state == "answering":
                connection.reply(frame, time.monotonic())
                self._watch(connection)

    def _wake(self) -> None:
        # A full socket wakes the control thread as well, and a closed one has nobody to wake.
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"x")

    def _close_descriptors(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._events.clear()
        self._selector.close()
        self._listener.socket.close()
        self._wake_reader.close()
        self._wake_writer.close()


def check_socket(setting: Literal["auto", "off"] | Path) -> None:
    """Raise ConfigError when the environment says where the socket lies in a way that cannot be."""
    if setting == "auto":
        # A current directory that is gone is no matter of configuration: it costs the socket only.
        with contextlib.suppress(OSError):
            candidates()


def start_control(
    setting: Literal["auto", "off"] | Path, handlers: Mapping[str, Handler]
) -> ControlServer | None:
    """Start the server that the `socket` setting asks for; None for `off`.

    Raises ControlError when no runtime directory is usable or the path is taken.
    """
    if setting == "off":
        return None
    if setting == "auto":
        return ControlServer(_listen_for_all_sessions(), handlers)
    return ControlServer(Path(setting), handlers)


def start_service_control(handlers: Mapping[str, Handler]) -> ControlServer:
    """Start the server of a process that serves all stores and is none; raises ControlError."""
    return ControlServer(_listen_for_all_sessions(listen_as_service), handlers)


def _listen_for_all_sessions(listen: Callable[[Path], Listener] = listen_in) -> Listener:
    """Return a listener that clients of this user find from any session; raises ControlError."""
    directory = first_usable(candidates())
    listener = listen(directory)
    meeting = meeting_place()
    if is_by_name() or directory == meeting:
        return listener
    try:
        return linked(listener, prepare(meeting))
    except ControlError as error:
        _LOG.debug("control socket: not found from other sessions: %s", error)
        return listener


_servers: "weakref.WeakSet[ControlServer]" = weakref.WeakSet()


def _abandon_all() -> None:
    for server in list(_servers):
        server.abandon()


os.register_at_fork(after_in_child=_abandon_all)
