"""Valkey and Redis as an engine: a single server, one that a Sentinel names, or a cluster.

A value is the key of its head and of `<name>#<n>` for each part behind that. The head is written
last and read first: without it there is no value. Parts that a writer left without one expire as
values do; where those have no time to live (`ttl_seconds` 0), the store's own eviction takes them,
so its policy has to be `allkeys-lru` there. Any other takes `volatile-lru`.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from omlx_cache_storage.page import Buffer
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import MEMBERS, Part, RemoteError
from omlx_cache_storage.remote.options import RemoteOptions
from omlx_cache_storage.remote.redis_errors import trouble
from omlx_cache_storage.remote.redis_places import Named, Places, Sharded, Single
from omlx_cache_storage.remote.redis_wire import PART_BYTES, Answers, Command, Wire
from omlx_cache_storage.remote.slabs import NEW_MEMORY, Sink

ASKS_TOGETHER = 1 << 20
PIPELINE = 1024
"""Commands that are sent at once."""
ANSWER_BYTES = 16 << 20
"""What a server is asked for at once: it keeps answers in its own memory until they are taken."""
WRITING_MS = 60_000
"""How long a writer of parts has before another one may take it for dead."""


class RedisEngine:
    """Values in a Valkey or Redis store. Connects when it is first asked, keeps no thread, and
    tries nothing again but what another server is said to have."""

    part_bytes: int | None = PART_BYTES
    asks_together = ASKS_TOGETHER

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        self._wire = Wire(address, options)
        self._places = _places(self._wire, address, options)
        self._expiry: Command = ("PX", options.ttl_seconds * 1000) if options.ttl_seconds else ()
        self._ttl_ms = options.ttl_seconds * 1000

    def ping(self) -> None:
        self._wire.ask(self._places.anyone(), "PING")

    def look(
        self, names: Sequence[str], nbytes: int, sets: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[list[str]]]:
        commands: list[Command] = [("GETRANGE", name, 0, nbytes - 1) for name in names]
        commands += [("ZRANGE", name, 0, -1) for name in sets]
        answers = self._answers(commands)
        heads = [head or None for head in answers[: len(names)]]
        members = [[_text(one) for one in found] for found in answers[len(names) :]]
        return heads, members

    def read(self, parts: Sequence[Part], sink: Sink = NEW_MEMORY) -> list[Buffer | None]:
        found: list[Buffer | None] = []
        for some in _portions(parts):
            commands = [("GET", part_name(one.name, one.number)) for one in some]
            found += self._answers(commands, sink)
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
        said = _text(self._wire.ask(self._places.anyone(), "INFO", section))
        lines = (line.partition(":") for line in said.splitlines() if not line.startswith("#"))
        return {name: value for name, colon, value in lines if colon}

    def close(self) -> None:
        self._wire.close()

    def _set(self, key: str, pieces: Sequence[Buffer], *, fresh: bool) -> bool:
        value = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        only = ("NX",) if fresh else ()
        return self._answers([("SET", key, value, *only, *self._expiry)])[0] is not None

    def _unlink(self, names: Sequence[str]) -> int:
        return sum(self._answers([("UNLINK", name) for name in names]))

    def _answers(self, commands: Sequence[Command], sink: Sink | None = None) -> Answers:
        """Return the answers to commands, all sent before the first is awaited; raises for the
        first error among them."""
        answers: Answers = []
        for first in range(0, len(commands), PIPELINE):
            answers += self._places.answers(commands[first : first + PIPELINE], sink)
        for answer in answers:
            if isinstance(answer, Exception):
                raise trouble(answer, self._wire.password)
        return answers


def part_name(name: str, number: int) -> str:
    """Return the key of a part; the head has the value's own name."""
    return f"{name}#{number}" if number else name


def _places(wire: Wire, address: RemoteAddress, options: RemoteOptions) -> Places:
    if address.kind == "cluster":
        return Sharded(wire, address.hosts, options.read_seconds)
    if address.kind == "sentinel":
        return Named(wire, address.hosts, address.path)
    return Single(wire, address.hosts[0])


def _portions(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Cut parts into stretches of at most ANSWER_BYTES, and of one part at least."""
    portion: list[Part] = []
    nbytes = 0
    for part in parts:
        if portion and nbytes + part.nbytes > ANSWER_BYTES:
            yield portion
            portion, nbytes = [], 0
        portion.append(part)
        nbytes += part.nbytes
    if portion:
        yield portion


def _text(value: Any) -> str:
    return bytes(value).decode("ascii", "replace")
