"""A page: one block of one layer group, one contiguous buffer and its description.

The payload is byte for byte the data section of the page's file, so nothing is converted between
the hot tier, a file and a socket.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from omlx_cache_storage.keys import BlockKey

Buffer: TypeAlias = Any
"""Any object with a contiguous buffer: bytes, an mx.array, a NumPy array. Python 3.11 has no type
for the buffer protocol."""


def flat(buffer: Buffer) -> memoryview:
    """Return a view of a buffer's bytes; copies nothing."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(bytearray())


ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


PAGED = "paged"
"""The name of the layer group of which a page needs all pages before it."""


COLD: Final = "cold"
"""The tier of a page that only this machine's disk has."""
REMOTE: Final = "remote"
"""The tier of a page that only other machines have."""


class PageId(NamedTuple):
    """Which page: the chain key of the tokens before its end, and its layer group."""

    key: BlockKey
    group: str


class Placed(NamedTuple):
    namespace: BlockKey
    page: PageId


class Tail(NamedTuple):
    """A page that ends inside a block: where, and in which group."""

    position: int
    group: str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


class Tensors(tuple[TensorSpec, ...]):
    """A page's tensors in payload order. Pages of one geometry share one object, and so the values
    computed from it: comparing two of them costs next to nothing."""

    def __init__(self, _: Iterable[TensorSpec] = ()) -> None:
        self.nbytes: int = sum(map(attrgetter("nbytes"), self))
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash


GEOMETRIES = 64


@lru_cache(GEOMETRIES)
def shared_tensors(specs: tuple[TensorSpec, ...]) -> Tensors:
    """Return the one object that stands for equal tensors; `GEOMETRIES` are remembered."""
    return specs if isinstance(specs, Tensors) else Tensors(specs)


@dataclass(frozen=True, slots=True)
class PageMeta:
    """The description of a page, which covers the tokens [position - held, position).

    `held` is 0 for a snapshot of recurrent state at `position`. `tail` marks a position that
    is not a block boundary. `extra` is a JSON text of the adapters' own (ring phases). `nbytes` are
    the payload's.
    """

    namespace: BlockKey
    key: BlockKey
    parent: BlockKey
    group: str
    position: int
    held: int
    tail: bool
    codec: str
    tensors: tuple[TensorSpec, ...]
    extra: str = ""
    id: PageId = field(init=False, repr=False, compare=False)
    nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tensors = shared_tensors(self.tensors)
        object.__setattr__(self, "tensors", tensors)
        object.__setattr__(self, "id", PageId(self.key, self.group))
        object.__setattr__(self, "nbytes", tensors.nbytes)

    @property
    def before(self) -> PageId:
        return PageId(self.parent if self.group == PAGED else self.key, PAGED)


class Page(NamedTuple):
    """A page in memory. The payload is owned by the page and is never written to."""

    meta: PageMeta
    payload: Buffer


class PageInfo(NamedTuple):
    position: int
    held: int
    nbytes: int
    tier: str

    @property
    def in_memory(self) -> bool:
        return self.tier not in (COLD, REMOTE)


class OpenPage(Protocol):
    """A stored page whose header was checked."""

    @property
    def meta(self) -> PageMeta: ...

    def read_into(self, pieces: Sequence[Buffer]) -> None:
        """Fill the pieces with the whole payload and verify it; raises PageError."""


WriteResult = Literal["written", "present", "refused", "rationed", "undecodable", "full"]
"""The result of a write to a tier behind memory. `present`: the tier had the page. `refused`: pages
of more worth take the budget. `rationed`: a day's writes are used up. `undecodable`: only other
readers can decode the page's file. `full`: evicting cannot make room."""
