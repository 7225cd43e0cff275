"""Asks one store through its control socket, and checks the shape of its answers, which may come
from another version of this program. It takes of HTTP what our server sends.

The standard library's client would take as long to import as all else in `omlx-cache ps`.
"""

import json
import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from omlx_cache.control.errors import STATUS_OF, STORE, ControlError
from omlx_cache_daemon.errors import CommandError, NobodyThere

if TYPE_CHECKING:
    from omlx_cache.control.replies import ProcessRow

T = TypeVar("T")
Map = dict[str, object]

DEFAULT_TIMEOUT = 10.0
MOST_BYTES = 64 * 2**20
"""Of an answer."""
_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) .*?\r\nContent-Length: (\d{1,9})\r\n.*?\r\n\r\n", re.DOTALL)
_CODES = {status: code for code, status in STATUS_OF.items()}


class Client:
    """One store's control socket, and its process id when the socket's name has it. Holds no
    connection between calls, so a store may restart."""

    def __init__(
        self, path: Path, pid: int | None = None, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self.path, self.pid, self.timeout = path, pid, timeout

    def within(self, seconds: float) -> "Client":
        return Client(self.path, self.pid, seconds)

    def process(self) -> "ProcessRow":
        from omlx_cache.control.replies import ProcessRow  # only here: `ps` reads plain JSON

        return as_answer(ProcessRow, self.call("ps"))

    def call(self, op: str, **args: object) -> object:
        """Return the store's result; blocks for `timeout` seconds at most.

        Raises NobodyThere when no process answers, ControlError when the store rejects the request,
        CommandError when it is of a version with another protocol.
        """
        try:
            answer = self._exchange(encode_request(op, args), time.monotonic() + self.timeout)
        except TimeoutError:
            raise NobodyThere(
                f"{self.path}: the store did not answer within {self.timeout:g} s"
            ) from None
        except OSError as error:
            is_alone = isinstance(error, ConnectionRefusedError | FileNotFoundError)
            why = "no store listens there" if is_alone else error.strerror or error
            raise NobodyThere(f"{self.path}: {why}") from error
        return decode_answer(answer, str(self.path))

    def _exchange(self, request: bytes, deadline: float) -> bytearray:
        """Return all that is answered until the end; raises OSError."""
        answer = bytearray()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(self.timeout)
            sock.connect(os.fspath(self.path))
            sock.sendall(request)
            while (left := deadline - time.monotonic()) > 0:
                sock.settimeout(left)
                piece = sock.recv(2**16)
                answer += piece
                if not piece:
                    return answer
                if len(answer) > MOST_BYTES:
                    raise ControlError("too_large", f"the answer has more than {MOST_BYTES} bytes")
        raise TimeoutError


def encode_request(op: str, args: Mapping[str, object]) -> bytes:
    body = json.dumps({name: one for name, one in args.items() if one is not None}).encode()
    line = f"POST {STORE}{op} HTTP/1.1"
    return f"{line}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def decode_answer(answer: bytes | bytearray, where: str) -> object:
    """Raises ControlError with the store's code for a refusal, CommandError for what another
    version speaks, and NobodyThere for half an answer."""
    head = _HEAD.match(answer)
    if head is None and answer:
        raise other_version("its answer is not understood")
    if head is None or len(answer) < head.end() + int(head[2]):
        raise NobodyThere(f"{where}: the store closed the connection") from EOFError()
    status, body = int(head[1]), answer[head.end() :]
    if status != 200:
        raise ControlError(_CODES.get(status, "failed"), body.decode(errors="replace").strip())
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise other_version("its answer is no JSON") from error


def as_answer(kind: type[T], reply: object) -> T:
    """Raises CommandError for another version's answer."""
    from omlx_cache.control.serialization import OtherShape, read

    try:
        return read(kind, reply)
    except OtherShape as error:
        raise other_version(str(error)) from error


def other_version(why: str) -> CommandError:
    return CommandError(
        f"the store is of another version of omlx-cache: {why}; restart it, or use the command of "
        "its version"
    )


def as_map(reply: object) -> Map:
    if not isinstance(reply, dict):
        raise other_version(f"it sent {type(reply).__name__} where a map was expected")
    return reply


def as_maps(reply: object) -> list[Map]:
    if not isinstance(reply, list):
        raise other_version(f"it sent {type(reply).__name__} where a list was expected")
    return [as_map(item) for item in reply]


def count_of(reply: Map, column: str) -> int:
    """Return a whole number of a reply, 0 for anything else."""
    count = reply.get(column)
    return count if isinstance(count, int) else 0
