"""What the remote tier asks of an engine: named values, read and written, and what may go wrong.

An engine knows no pages. Its client is a well-kept library; what it raises becomes `RemoteError`.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from omlx_cache_storage.errors import CacheError
from omlx_cache_storage.page import Buffer
from omlx_cache_storage.remote.reasons import Trouble

MEMBERS = 256
"""Members of a set that are kept or asked for: a boundary that thousands of prompts have in common
would otherwise get as many, all of which every look-up brings."""


class RemoteError(CacheError):
    """An engine did not do what it was asked. The text names no password."""

    def __init__(self, reason: Trouble, text: str = "") -> None:
        super().__init__(text[:500])
        self.reason = reason


def known_error(error: Exception) -> RemoteError:
    """Return what an engine raised; of a client's bug only what kind it is: its text may quote
    anything."""
    return error if isinstance(error, RemoteError) else RemoteError("error", type(error).__name__)


class Part(NamedTuple):
    """A stretch of a value: bytes [offset, offset + nbytes) of it, part number `number`."""

    name: str
    number: int
    offset: int
    nbytes: int


class RemoteEngine(Protocol):
    """Named, immutable values on other machines. Any thread may call any method; each blocks on the
    network, as long as the client's own time-outs say, and raises RemoteError alone.

    `part_bytes`: a value is cut into parts of so many bytes, the last one shorter; None where any
    stretch of a value can be read, so that nothing need be cut. `asks_together`: how many names one
    phase asks for without taking longer than for one.
    """

    part_bytes: int | None
    asks_together: int

    def ping(self) -> None:
        """Return once the store answers."""

    def look(
        self, names: Sequence[str], nbytes: int, sets: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[list[str]]]:
        """Return the first `nbytes` of each value (fewer of a shorter one), None for one that is
        not there, and the members of each set, [] for one that is not there. One sequential phase:
        pipelined, or at once on several connections."""
        ...

    def read(self, parts: Sequence[Part]) -> list[Buffer | None]:
        """Return each part's bytes, None for one that is not there. A part that is shorter than it
        should be is returned as it is. `readers.note_answer` is told when some of them came, long
        before all of them did."""
        ...

    def write(self, name: str, parts: Sequence[Sequence[Buffer]], *, replace: bool) -> bool:
        """Publish a value whole or not at all: its parts, each given in pieces, the head last.
        False without `replace` when it is there already."""
        ...

    def add(self, set_name: str, member: str) -> None:
        """Add to a set that lives about as long as values do."""

    def delete(self, names: Sequence[str]) -> int:
        """Delete values with all their parts, and return how many there were."""
        ...

    def close(self) -> None:
        """Close connections; what is under way on other threads fails. Never raises."""


def cut(pieces: Sequence[Buffer], part_bytes: int | None) -> list[list[Buffer]]:
    """Return a value's pieces as parts of so many bytes each; copies nothing."""
    views = [view.cast("B") for piece in pieces if (view := memoryview(piece)).nbytes]
    if part_bytes is None:
        return [list(views)]
    parts: list[list[Buffer]] = [[]]
    room = part_bytes
    for view in views:
        while view.nbytes:
            if not room:
                parts.append([])
                room = part_bytes
            taken, view = view[:room], view[room:]
            parts[-1].append(taken)
            room -= taken.nbytes
    return parts
