"""The status port: a small HTTP server of its own threads, on loopback unless it has a token."""

import logging
import os
import select
import socket
import threading
import weakref
from contextlib import suppress
from typing import Self

from omlx_cache.settings.names import ConfigError
from omlx_cache.status.clients import Clients
from omlx_cache.status.routes import StatusRoutes
from omlx_cache.status.source import Source
from omlx_cache.status.token import is_loopback

_log = logging.getLogger(__name__)

MOST_CLIENTS = 32
_PAUSE_MILLISECONDS = 500
_CLOSE_SECONDS = 5.0


class StatusServer:
    """Answers for a source from construction to `close`, on threads of its own.

    `port` 0 takes any free one; `port` and `url` say which. At most `MOST_CLIENTS` are served at
    once, and streams among them are at most `MOST_STREAMS`: a newcomer takes the place of whoever
    has been slowest, so that a silent client costs nobody an answer. Raises ConfigError for a host
    that others reach, without a token, and OSError for an address that cannot be had. After a fork
    the child holds nothing of it.

    `_closed` is guarded by `_lock`; nothing else changes.
    """

    def __init__(
        self,
        source: Source,
        port: int = 0,
        token: str | None = None,
        host: str = "127.0.0.1",
        *,
        most: int = MOST_CLIENTS,
    ) -> None:
        self._socket = _bound(host, port, token)
        address = self._socket.getsockname()
        self.host, self.port = str(address[0]), int(address[1])
        self._routes = StatusRoutes(source, token)
        self._clients = Clients(self._routes, most)
        self._lock = threading.Lock()
        self._closed = False
        self._woken, self._wake = socket.socketpair()
        _servers.add(self)
        self._thread = threading.Thread(target=self._serve, name="omlx-cache-status", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the page is, without the token."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{self.port}/status"

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Cut every client off and end the threads; waits at most `timeout` seconds for them.
        Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with suppress(OSError):
            self._wake.send(b"x")
        self._routes.close(timeout)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        self._clients.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def abandon(self) -> None:
        """Close this process's descriptors only: for the child of a fork, where no thread runs."""
        self._lock = threading.Lock()
        self._closed = True
        self._clients.abandon()
        self._close_descriptors()

    def _serve(self) -> None:
        try:
            # No `select`: it knows no descriptors beyond 1024, and a server may have them.
            waiting, pause = select.poll(), select.poll()
            waiting.register(self._socket, select.POLLIN)
            waiting.register(self._woken, select.POLLIN)
            pause.register(self._woken, select.POLLIN)
            while not self._closed:
                waiting.poll()
                if not self._closed and not self._accept():
                    pause.poll(_PAUSE_MILLISECONDS)
        finally:
            self._close_descriptors()

    def _accept(self) -> bool:
        """Take a client, if there is one; False when the process is out of descriptors."""
        try:
            connection, address = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return True
        except OSError as error:
            # Out of descriptors: the listener stays readable, so look away for a moment.
            _log.warning("status port: cannot accept: %s", error)
            return False
        self._clients.take(connection, str(address[0]))
        return True

    def _close_descriptors(self) -> None:
        for one in (self._socket, self._woken, self._wake):
            one.close()


def _bound(host: str, port: int, token: str | None) -> socket.socket:
    """Return a listening socket that blocks nobody."""
    if token is not None and not token:
        raise ConfigError("the token is empty: name one, or None for this machine only")
    if not 0 <= port <= 65535:
        raise ConfigError(f"port must be from 0 to 65535, 0 for any free one; got {port}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError, OverflowError) as error:
        raise OSError(f"cannot serve the status on {host!r}, port {port}: {error}") from error
    family, kind, _, _, address = found[0]
    if token is None and not is_loopback(str(address[0])):
        raise ConfigError(
            f"host {host} can be reached from other machines: give a token "
            "(OMLX_CACHE_STATUS_TOKEN), or leave the host at 127.0.0.1"
        )
    bound = socket.socket(family, kind)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
        bound.setblocking(False)
    except (OSError, OverflowError) as error:
        bound.close()
        why = getattr(error, "strerror", None) or error
        raise OSError(
            f"cannot serve the status on {host}, port {port}: {why}; port 0 takes any free one"
        ) from error
    return bound


_servers: "weakref.WeakSet[StatusServer]" = weakref.WeakSet()


def _abandon_all() -> None:
    for server in list(_servers):
        server.abandon()


os.register_at_fork(after_in_child=_abandon_all)
