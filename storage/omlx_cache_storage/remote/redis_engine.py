"""Valkey and Redis as an engine: a single server, one that a Sentinel names, or a cluster.

A value is the key of its head and of `<name>#<n>` for each part behind that. The head is written
last and read first: without it there is no value. Parts that a writer left without one expire as
values do; where those have no time to live (`ttl_seconds` 0), the store's own eviction takes them,
so its policy has to be `allkeys-lru` there. Any other takes `volatile-lru`.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from omlx_cache_storage.page import Buffer
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import MEMBERS, Part, RemoteError
from omlx_cache_storage.remote.options import RemoteOptions
from omlx_cache_storage.remote.redis_clients import PART_BYTES, ClusterNodes, Command, RedisServer

ASKS_TOGETHER = 1 << 20
PIPELINE = 1024
"""Commands that are sent at once."""
ANSWER_BYTES = 16 << 20
"""What a server is asked for at once: it keeps answers in its own memory until they are taken."""
WRITING_MS = 60_000
"""How long a writer of parts has before another one may take it for dead."""


class RedisEngine:
    """Values in a Valkey or Redis store. Connects when it is first asked, and tries nothing again
    but what another node is said to have."""

    part_bytes: int | None = PART_BYTES
    asks_together = ASKS_TOGETHER

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        self._server = (ClusterNodes if address.kind == "cluster" else RedisServer)(
            address, options
        )
        self._expiry: Command = ("PX", options.ttl_seconds * 1000) if options.ttl_seconds else ()
        self._ttl_ms = options.ttl_seconds * 1000

    def ping(self) -> None:
        self._server.ask("PING")

    def look(
        self, names: Sequence[str], nbytes: int, sets: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[list[str]]]:
        commands: list[Command] = [("GETRANGE", name, 0, nbytes - 1) for name in names]
        commands += [("ZRANGE", name, 0, -1) for name in sets]
        answers = self._answers(commands)
        heads = [_value(head) or None for head in answers[: len(names)]]
        if not all(isinstance(found, list) for found in answers[len(names) :]):
            raise RemoteError("lost", "the server answered something else than was asked")
        members = [[_text(one) for one in found] for found in answers[len(names) :]]
        return heads, members

    def read(self, parts: Sequence[Part]) -> list[Buffer | None]:
        found: list[Buffer | None] = []
        together = max(1, ANSWER_BYTES // max((part.nbytes for part in parts), default=1))
        for first in range(0, len(parts), together):
            some = parts[first : first + together]
            answers = self._answers([("GET", part_name(one.name, one.number)) for one in some])
            found += map(_value, answers)
        return found

    def write(self, name: str, parts: Sequence[Sequence[Buffer]], *, replace: bool) -> bool:
        """Publish a value; False also while somebody else is writing one with parts."""
        if len(parts) == 1:
            return self._set(name, parts[0], fresh=not replace)
        # Two writers' parts of one value may differ, as encryption makes them: never mix them.
        writing, mine = f"{name}#writing", os.urandom(8)
        if self._answers([("SET", writing, mine, "NX", "PX", WRITING_MS)])[0] is None:
            return False
        try:
            if not replace and self._answers([("EXISTS", name)])[0]:
                return False
            for number in reversed(range(1, len(parts))):
                self._set(part_name(name, number), parts[number], fresh=False)
            return self._set(name, parts[0], fresh=not replace)
        finally:
            # Unless it took so long that another one took it for dead.
            with suppress(RemoteError):
                if self._answers([("GET", writing)])[0] == mine:
                    self._unlink([writing])

    def add(self, set_name: str, member: str) -> None:
        """Add to a set, which keeps its last MEMBERS members."""
        commands: list[Command] = [
            ("ZADD", set_name, time.time(), member),
            ("ZREMRANGEBYRANK", set_name, 0, -MEMBERS - 1),
        ]
        if self._ttl_ms:
            commands.append(("PEXPIRE", set_name, self._ttl_ms))
        self._answers(commands)

    def delete(self, names: Sequence[str]) -> int:
        """Delete values, their heads first, and return how many there were."""
        lengths = self._answers([("STRLEN", name) for name in names])
        gone = self._unlink(names)
        for name, length in zip(names, lengths, strict=True):
            first = 1
            while length >= PART_BYTES:
                parts = [part_name(name, number) for number in range(first, first + 16)]
                if not self._unlink(parts):
                    break
                first += len(parts)
        return gone

    def info(self, section: str = "default") -> dict[str, str]:
        """Return what a server says of itself; of a cluster, one of its nodes."""
        return {name: str(value) for name, value in self._server.ask("INFO", section).items()}

    def close(self) -> None:
        self._server.close()

    def _set(self, key: str, pieces: Sequence[Buffer], *, fresh: bool) -> bool:
        value = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        only = ("NX",) if fresh else ()
        return self._answers([("SET", key, value, *only, *self._expiry)])[0] is not None

    def _unlink(self, names: Sequence[str]) -> int:
        return sum(self._answers([("UNLINK", name) for name in names]))

    def _answers(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers to commands; raises for the first error among them."""
        answers: list[Any] = []
        for first in range(0, len(commands), PIPELINE):
            answers += self._server.answers(commands[first : first + PIPELINE])
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._server.trouble(answer)
        return answers


def part_name(name: str, number: int) -> str:
    """Return the key of a part; the head has the value's own name."""
    return f"{name}#{number}" if number else name


def _value(answer: Any) -> bytes | None:
    """Return a value that a server answered, None for none."""
    if answer is not None and not isinstance(answer, bytes):
        raise RemoteError("lost", "the server answered something else than was asked")
    return answer


def _text(value: Any) -> str:
    return bytes(value).decode("ascii", "replace")
