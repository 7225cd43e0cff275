"""A short runtime directory, and raw clients."""

import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import pytest

from omlx_cache.control import ControlServer


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A private directory whose path leaves room for a socket's name; pytest's own do not."""
    path = Path(tempfile.mkdtemp(prefix=f"oc-{os.getpid()}-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


class RawClient:
    """A client that can say anything; `sock` is for misbehaviour."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(str(path))

    def send(self, message: object) -> None:
        payload = msgpack.packb(message)
        self.sock.sendall(struct.pack(">I", len(payload)) + payload)

    def receive(self) -> dict[str, object]:
        (length,) = struct.unpack(">I", self._exactly(4))
        reply = msgpack.unpackb(self._exactly(length))
        assert isinstance(reply, dict)
        return reply

    def ask(self, op: str, **args: object) -> dict[str, object]:
        self.send({"v": 1, "op": op, "args": args})
        return self.receive()

    def at_end(self) -> bool:
        """True when the server has closed the connection."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


@pytest.fixture
def connect() -> Iterator[Callable[[ControlServer], RawClient]]:
    clients = []

    def make(server: ControlServer) -> RawClient:
        clients.append(RawClient(server.path))
        return clients[-1]

    yield make
    for client in clients:
        client.sock.close()
