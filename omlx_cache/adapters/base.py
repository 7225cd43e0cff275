"""The adapter protocol: a live cache is cut and rebuilt by its named arrays and the order of the
tokens in their buffers (`TokenRange`s, index 0 first)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from omlx_cache.arrays.mlxio import Array
from omlx_cache.codecs.codec import Codec

Kind = Literal["paged", "window", "state"]


class TokenRange(NamedTuple):
    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


Ranges = tuple[TokenRange, ...]
Phase = Mapping[str, int]


class GroupSpec(NamedTuple):
    """How a layer group ages. `window` and `keep` are tokens, 0 unless kind is `window`."""

    kind: Kind
    window: int = 0
    keep: int = 0

    @property
    def name(self) -> str:
        if self.kind == "window":
            return f"window{self.window}" + (f"k{self.keep}" if self.keep else "")
        return self.kind

    def needs(self, position: int) -> Ranges:
        """Return the tokens that a restore to `position` needs, in temporal order."""
        if self.kind == "state" or position == 0:
            return ()
        start = position - (self.window - self.keep)
        if self.kind == "paged" or start <= self.keep:
            return (TokenRange(0, position),)
        recent = TokenRange(start, position)
        return (TokenRange(0, self.keep), recent) if self.keep else (recent,)

    def page_ends(self, position: int, block_size: int) -> list[int]:
        """Return where the pages end, ascending, that restore to `position` or one token before.
        The first `keep` tokens of a window have a page of their own, wherever the window is."""
        if self.kind == "state" or position == 0:
            return [position] if position else []
        start = max(0, self.needs(position)[-1].start - 1) // block_size * block_size
        ends = {*range(start + block_size, position + 1, block_size), position}
        return sorted(ends | {self.keep} if 0 < self.keep < position else ends)


PAGED = GroupSpec("paged")
STATE = GroupSpec("state")


class DenseForm(NamedTuple):
    """A packed tensor in its decoded form; an empty dtype when that is unknown."""

    dtype: str
    dim: int


@dataclass(frozen=True, slots=True)
class Packing:
    """A leaf whose keys and values are packed in memory: `codec` of a side (`keys`, `values`) and
    its channels, and the `forms` of the sides that hold something now."""

    codec: Callable[[str, int], Codec]
    forms: Mapping[str, DenseForm]


class UnsupportedCache(Exception):
    """A cache whose state this project cannot read or set; the text names the class."""


class Adapter(Protocol):
    """Reads and rebuilds one cache class. Stateless; calls happen on the model's thread.

    None of the methods evaluates or changes a live cache. They raise UnsupportedCache for a cache
    that is of the class but in a shape that cannot be kept (a batch, say). Methods with a body are
    right for plain arrays in temporal order, tight and as many as the group needs.
    """

    def group(self, cache: Any) -> GroupSpec:
        """Return how the cache ages."""

    def config(self, cache: Any) -> dict[str, int]:
        """Return the parameters that make two caches of the class incompatible."""

    def position(self, cache: Any) -> int | None:
        """Return how many tokens the cache has seen, or None when the class does not say."""

    def arrays(self, cache: Any) -> dict[str, Array]:
        """Return the live arrays by field name, none of an empty cache. In paged and window groups
        the token axis is `mlxio.TOKEN_AXIS`."""

    def held(self, cache: Any) -> Ranges:
        """Return the tokens in the buffers, in buffer order from index 0; () for state."""
        return self.wanted(cache, self.position(cache) or 0, {})

    def phase(self, cache: Any) -> Phase:
        """Return what `held` and `rebuild` need beyond the position (a ring's index, the channels
        of packed words); {} for plain arrays in temporal order. Stored with the page."""
        return {}

    def wanted(self, cache: Any, position: int, phase: Phase) -> Ranges:
        """Return what `held` should be after a restore to `position`."""
        return self.group(cache).needs(position)

    def grows(self, cache: Any) -> int | None:
        """Return the step by which buffers may be over-allocated, None when they are tight."""
        return None

    def packing(self, cache: Any) -> Packing | None:
        """Return how keys and values are packed, None for a cache of plain arrays."""
        return None

    def rebuild(self, cache: Any, arrays: Mapping[str, Array], position: int, phase: Phase) -> None:
        """Turn a fresh cache into one at `position` that owns `arrays`, laid out as `wanted`."""


def class_name(cache: Any) -> str:
    return f"{type(cache).__module__}.{type(cache).__qualname__}"


def one_sequence(arrays: Mapping[str, Array]) -> None:
    """Raise UnsupportedCache unless every array has batch size 1."""
    for name, array in arrays.items():
        if array.ndim == 0 or array.shape[0] != 1:
            raise UnsupportedCache(f"{name} has shape {tuple(array.shape)}; extract one sequence")
