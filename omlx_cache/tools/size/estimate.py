"""How much memory a model's KV takes: per token, per block, and for a context and a batch."""

from dataclasses import dataclass
from pathlib import Path

from omlx_cache.codecs.identity import CodecName, check_codec_name

from .caches import GroupBytes, Kind, ModelCaches
from .child import caches_of
from .config import Config

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
    model: str | Path | Config | ModelCaches,
    *,
    context: int = 4096,
    batch: int = 1,
    block_size: int = DEFAULT_BLOCK,
    codec: str = "dense",
    reserve: int = 0,
) -> Estimate:
    """Return the KV memory of a model; imports no MLX and loads no weights.

    model: its caches, or what `caches_of` takes, which then traces it.
    reserve: tokens of room to grow for each sequence.
    Raises SizingError as `caches_of` does; ValueError for an unknown codec or a size out of range.
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
    caches = model if isinstance(model, ModelCaches) else caches_of(model)
    groups = tuple(_group(g, chosen, context, reserve, batch, block_size) for g in caches.groups)
    return Estimate(
        caches.model_type,
        chosen,
        caches.itemsize,
        context,
        reserve,
        batch,
        block_size,
        groups,
        caches.notes,
    )


def _group(
    group: GroupBytes, codec: CodecName, context: int, reserve: int, batch: int, block_size: int
) -> GroupEstimate:
    keys, values = group.token_bytes[codec]
    held, room = _held(context, group), _held(context + reserve, group)
    return GroupEstimate(
        kind=group.kind,
        window=group.window,
        layers=group.caches,
        token_bytes=keys + values,
        block_bytes=(keys + values) * block_size + group.snapshot_bytes,
        held_tokens=held,
        key_bytes=keys * held * batch,
        value_bytes=values * held * batch,
        context_bytes=((keys + values) * held + group.snapshot_bytes) * batch,
        reserved_bytes=((keys + values) * room + group.snapshot_bytes) * batch,
    )


def _held(tokens: int, group: GroupBytes) -> int:
    if group.kind == "state":
        return 0
    return min(tokens, group.window) if group.window else tokens
