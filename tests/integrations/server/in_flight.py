"""Long prompts that are computed slowly, so that others can be asked while they are."""

import json
import re
import socket
import string
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from kit.tinylm import LmServer
from kit.wire import Answer, completion, connected, exchange

BLOCK = 64
LONG = 150.0
"""Seconds that are enough for any step of a test, on a machine that has other work too."""

STEP = ("--prefill-step-size", "2", "--verbose")
WAITS = "waits for another that computes its prefix"
PROGRESS = re.compile(r"Prompt processing progress: (\d+)/(\d+)")
_CHARACTERS = [c for c in string.printable if c not in "\r\t\x0b\x0c"]
T = TypeVar("T")
QUIET = {"max_tokens": 6, "logit_bias": {"2": -100.0, "127": -100.0}}


def tokens(count: int, seed: int) -> list[int]:
    """Tokens of a small model's texts; other seeds part at the first of them."""
    return [3 + (seed * 7 + i * i * (seed + 1) + i // 97) % 90 for i in range(count)]


def as_text(prompt: Sequence[int]) -> str:
    """The text of such tokens, for a server that takes no tokens."""
    return "".join(_CHARACTERS[token - 3] for token in prompt)


@dataclass(frozen=True, slots=True)
class Said:
    """What one request was answered."""

    status: int
    text: str = ""
    prompt: int = 0
    cached: int = 0
    error: str = ""

    @property
    def computed(self) -> int:
        return self.prompt - self.cached


def said_in(answer: Answer) -> Said:
    if answer.status != 200:
        return Said(answer.status, error=answer.error)
    content = json.loads(answer.content)
    usage = content["usage"]
    return Said(
        200,
        content["choices"][0]["text"],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )


class Asking:
    """Asks a server from threads."""

    def __init__(self, server: LmServer, pool: ThreadPoolExecutor) -> None:
        self.server = server
        self._pool = pool

    def ask(self, prompt: Sequence[int] | str, **fields: Any) -> "Future[Said]":
        sent = completion(prompt=prompt, **{**QUIET, **fields})
        return self._pool.submit(lambda: said_in(exchange(self.server.url, sent, LONG)))

    def map(self, function: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
        """Call a function for each number at once."""
        return self._pool.map(function, numbers)

    def until_computing(self, length: int, most: int = 0) -> None:
        """Wait until `most` tokens of a prompt of so many, or more, were computed."""
        self.until(lambda: any(p >= most for p in self.progress_of(length)))

    def progress_of(self, length: int) -> list[int]:
        found = PROGRESS.findall(self.server.text())
        return [int(done) for done, whole in found if int(whole) == length]

    def until_held(self, count: int) -> None:
        """Wait until so many requests were held, since the server started."""
        self.until(lambda: self.server.text().count(WAITS) >= count)

    def until(self, seen: Any) -> None:
        """Poll what the server has logged: it offers nothing to wait on."""
        deadline = time.monotonic() + LONG
        while not seen():
            assert time.monotonic() < deadline, self.server.text()[-3000:]
            time.sleep(0.01)


@contextmanager
def asking(server: LmServer) -> Iterator[Asking]:
    with ThreadPoolExecutor(16) as pool:
        yield Asking(server, pool)


@contextmanager
def stream_begun(server: LmServer, prompt: Sequence[int]) -> Iterator[socket.socket]:
    """A stream that has come to its first sign of life; its client leaves at the block's end."""
    with connected(server.url, LONG) as connection:
        connection.sendall(completion(prompt=prompt, stream=True, **QUIET))
        seen = b""
        while b"keepalive" not in seen:
            piece = connection.recv(1 << 12)
            assert piece, seen
            seen += piece
        yield connection
