"""How much memory a model's KV takes: per token, per block, and for a context and a batch."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from omlx_cache.codecs.names import CodecName, check_codec_name

from .codecs import Sides, token_bytes
from .config import Config, read_config
from .families import layout_of
from .leaves import Attention, Kind, Leaf, ModelLayout, State

DEFAULT_BLOCK = 256


@dataclass(frozen=True, slots=True)
class GroupEstimate:
    """The caches of one kind, window and shape, as bytes.

    `token_bytes` is what a token adds while it is held, over all layers of the group;
    `block_bytes` what one page of it takes (a state page is a snapshot, whatever the block
    size); `held_tokens` of the context are held, at `context_bytes`, for the whole batch.
    `reserved_bytes` is the same with room to grow: what an allocation for the full context
    takes.
    """

    kind: Kind
    window: int
    layers: int
    token_bytes: int
    block_bytes: int
    held_tokens: int
    key_bytes: int
    value_bytes: int
    context_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """KV memory of one model for one context, batch and codec, in bytes."""

    model_type: str
    codec: CodecName
    itemsize: int
    context: int
    reserve: int
    batch: int
    block_size: int
    groups: tuple[GroupEstimate, ...]
    notes: tuple[str, ...]

    @property
    def token_bytes(self) -> int:
        """Bytes that one more token adds in one sequence, windows not yet full."""
        return sum(group.token_bytes for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's pages, a snapshot included."""
        return sum(group.block_bytes for group in self.groups)

    @property
    def key_bytes(self) -> int:
        return sum(group.key_bytes for group in self.groups)

    @property
    def value_bytes(self) -> int:
        return sum(group.value_bytes for group in self.groups)

    @property
    def context_bytes(self) -> int:
        """Bytes of the whole batch at the full context, without slack."""
        return sum(group.context_bytes for group in self.groups)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of the whole batch when `reserve` more tokens are allocated for each."""
        return sum(group.reserved_bytes for group in self.groups)


def estimate(
    model: str | Path | Config,
    *,
    context: int = 4096,
    batch: int = 1,
    block_size: int = DEFAULT_BLOCK,
    codec: str = "dense",
    reserve: int = 0,
) -> Estimate:
    """Return the KV memory of a model; imports no MLX and loads no weights.

    model: a config.json, a folder that holds one, an id in the local hub cache, or the
        parsed configuration. reserve: tokens of room to grow for each sequence.
    Raises SizingError: nothing readable there, or a layout that is not understood;
    ValueError for an unknown codec or a size out of range.
    """
    for name, value, least in (
        ("context", context, 0),
        ("batch", batch, 1),
        ("block_size", block_size, 1),
        ("reserve", reserve, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    chosen = check_codec_name(codec)
    layout = layout_of(read_config(model) if isinstance(model, str | Path) else model)
    sizes = token_bytes(layout.leaves, chosen, layout.itemsize)
    groups = tuple(
        _group(layout, members, context, reserve, batch, block_size)
        for members in _by_group(layout.leaves, sizes)
    )
    return Estimate(
        layout.model_type,
        chosen,
        layout.itemsize,
        context,
        reserve,
        batch,
        block_size,
        groups,
        layout.notes,
    )


_Member = tuple[Leaf, Sides]


def _by_group(leaves: Iterable[Leaf], sizes: Iterable[Sides]) -> list[list[_Member]]:
    """Group caches that age alike: same kind and window, in order of appearance."""
    groups: dict[tuple[Kind, int], list[_Member]] = {}
    for leaf, sides in zip(leaves, sizes, strict=True):
        window = leaf.window if isinstance(leaf, Attention) else 0
        groups.setdefault((leaf.kind, window), []).append((leaf, sides))
    return list(groups.values())


def _group(
    layout: ModelLayout,
    members: list[_Member],
    context: int,
    reserve: int,
    batch: int,
    block_size: int,
) -> GroupEstimate:
    first = members[0][0]
    keys = sum(sides.keys for _, sides in members)
    values = sum(sides.values for _, sides in members)
    snapshot = sum(leaf.size(layout.itemsize) for leaf, _ in members if isinstance(leaf, State))
    window = first.window if isinstance(first, Attention) else 0
    held = 0 if first.kind == "state" else _held(context, window)
    room = 0 if first.kind == "state" else _held(context + reserve, window)
    return GroupEstimate(
        kind=first.kind,
        window=window,
        layers=len(members),
        token_bytes=keys + values,
        block_bytes=(keys + values) * block_size + snapshot,
        held_tokens=held,
        key_bytes=keys * held * batch,
        value_bytes=values * held * batch,
        context_bytes=((keys + values) * held + snapshot) * batch,
        reserved_bytes=((keys + values) * room + snapshot) * batch,
    )


def _held(tokens: int, window: int) -> int:
    return min(tokens, window) if window else tokens
