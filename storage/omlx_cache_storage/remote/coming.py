"""Values on their way from a remote store: what is asked for, what came, and who waits for it."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from omlx_cache_storage.page import Buffer, PageId
from omlx_cache_storage.remote.engine import Part
from omlx_cache_storage.remote.envelope import WIRE_BYTES
from omlx_cache_storage.remote.names import MOST_BYTES

TORN = "a part of it is gone"
"""Said of a value whose head may be there still, which is all that a look-up sees."""

Value = list[Buffer]


class Wanted(NamedTuple):
    """A value to be read: its page, its name, and its length, 0 when that is not known: then it is
    `about` so long."""

    page: PageId
    name: str
    nbytes: int
    about: int = 0


@dataclass(eq=False)
class Coming:
    """A value on its way. `todo` are the parts that nobody asked for yet, `nbytes` is what it takes
    when all of it has come, as far as is known, `left` counts the parts that have not come, `held`
    is what it takes of the window; `taken` when somebody waits for it."""

    wanted: Wanted
    expected: "Expected"
    parts: list[Part]
    slots: list[Buffer | None] = field(default_factory=list)
    todo: deque[int] = field(default_factory=deque)
    nbytes: int = 0
    left: int = 0
    held: int = 0
    taken: bool = False
    future: "Future[Value]" = field(default_factory=Future)

    def __post_init__(self) -> None:
        parts, self.parts = self.parts, []
        self.add(parts)

    def cost(self, at: int) -> int:
        """Return how long a part is likely to be."""
        known = self.wanted.nbytes or len(self.parts) > 1 or not self.wanted.about
        return self.parts[at].nbytes if known else self.wanted.about

    def add(self, parts: Sequence[Part]) -> None:
        self.todo.extend(range(len(self.parts), len(self.parts) + len(parts)))
        self.parts += parts
        self.slots += [None] * len(parts)
        self.left += len(parts)
        self.nbytes = sum(map(self.cost, range(len(self.parts))))


class Unit(NamedTuple):
    """A part of a value."""

    coming: Coming
    at: int

    @property
    def part(self) -> Part:
        return self.coming.parts[self.at]

    @property
    def cost(self) -> int:
        return self.coming.cost(self.at)


class Expected:
    """Pages that somebody is about to read; `close` ends that, any number of times.

    `coming`, `queue` (those with parts to ask for, in order), `progress` (when something came
    last, and `since` how many bytes), `failed` (the store was blamed for it) and `closed` belong to
    the reads, and are guarded by their lock.
    """

    def __init__(self, end: Callable[["Expected"], None]) -> None:
        self._end = end
        self.coming: dict[PageId, Coming] = {}
        self.queue: deque[Coming] = deque()
        self.progress = time.monotonic()
        self.since = 0
        self.failed = False
        self.closed = False

    def __enter__(self) -> "Expected":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Read no more of what nobody has taken, and give its memory back. Waits for nothing."""
        self._end(self)


def parts_of(name: str, nbytes: int, part_bytes: int, first: int = 0) -> list[Part]:
    """Cut a value from part `first` on; a value of no known length, 0, is taken to be one part."""
    nbytes = nbytes or part_bytes
    return [
        Part(name, at // part_bytes, at, min(part_bytes, nbytes - at))
        for at in range(first * part_bytes, nbytes, part_bytes)
    ]


def length_said_by(first: Buffer) -> int:
    """Return how long a value is by its first bytes, 0 when they do not say."""
    raw = bytes(memoryview(first)[16:24])
    nbytes = WIRE_BYTES + int.from_bytes(raw, "little") if len(raw) == 8 else 0
    return nbytes if nbytes <= MOST_BYTES else 0
