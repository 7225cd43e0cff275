"""Asks one store through its control socket."""

import os
import socket
import time
from pathlib import Path

from omlx_cache.control.frames import (
    HEADER,
    REPLY_LIMIT,
    decode_reply,
    encode_request,
    frame_length,
)
from omlx_cache_daemon.errors import NobodyThere

DEFAULT_TIMEOUT = 10.0


class Client:
    """One store's control socket. Holds no connection between calls, so a store may restart."""

    def __init__(self, path: Path, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.path = path
        self.timeout = timeout

    def call(self, op: str, **args: object) -> object:
        """Return the store's result; blocks for `timeout` seconds at most.

        Raises NobodyThere when nobody answers, ControlError when the store refuses.
        """
        request = encode_request(op, args)
        deadline = time.monotonic() + self.timeout
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(self.timeout)
                sock.connect(os.fspath(self.path))
                sock.sendall(request)
                header = _receive(sock, HEADER.size, deadline)
                payload = _receive(sock, frame_length(header, REPLY_LIMIT), deadline)
        except TimeoutError:
            raise NobodyThere(
                f"{self.path}: the store did not answer within {self.timeout:g} s"
            ) from None
        except (OSError, EOFError) as error:
            raise NobodyThere(f"{self.path}: {_reason(error)}") from error
        return decode_reply(payload)


def is_listening(path: Path, timeout: float = 1.0) -> bool:
    """Tell whether somebody accepts connections at a path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect(os.fspath(path))
        except TimeoutError:
            return True
        except OSError:
            return False
        return True


def _receive(sock: socket.socket, size: int, deadline: float) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        came = sock.recv_into(view)
        if came == 0:
            raise EOFError("the store closed the connection")
        view = view[came:]
    return data


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):
        return "no store listens there"
    return getattr(error, "strerror", None) or str(error)
