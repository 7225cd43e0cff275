"""Raw clients."""

import socket
from collections.abc import Callable, Iterator

import pytest

from omlx_cache.control.server import ApiServer


class RawClient:
    """A client that can say anything."""

    def __init__(self, server: ApiServer) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(str(server.path))

    def get(self, operation: str) -> None:
        self.sock.sendall(b"GET /store/%s HTTP/1.1\r\n\r\n" % operation.encode())

    def rest(self) -> bytes:
        """Return what comes until the end of the connection."""
        answer = b""
        try:
            while piece := self.sock.recv(2**20):
                answer += piece
        except ConnectionResetError:
            pass
        return answer

    def status(self) -> int:
        """Return the status of the answer."""
        return int(self.rest().split()[1])

    def at_end(self) -> bool:
        """True when the server has closed the connection without an answer."""
        return not self.rest()


Connect = Callable[[ApiServer], RawClient]


@pytest.fixture
def connect() -> Iterator[Connect]:
    clients = []

    def make(server: ApiServer) -> RawClient:
        clients.append(RawClient(server))
        return clients[-1]

    yield make
    for client in clients:
        client.sock.close()
