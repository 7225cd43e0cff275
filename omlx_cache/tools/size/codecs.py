"""Bytes of encoded keys and values, as `omlx_cache.codecs` lays them out. No MLX."""

from collections.abc import Sequence
from typing import NamedTuple

from omlx_cache.codecs.names import DENSE_LAST, HALVES, CodecName

from .leaves import Attention, Leaf

GROUP_SIZES = (64, 32)
TURBO_DIMS = range(16, 2049)


class Sides(NamedTuple):
    """Bytes of one token in one cache."""

    keys: int
    values: int


def token_bytes(leaves: Sequence[Leaf], codec: CodecName, itemsize: int) -> list[Sides]:
    """Return what a token takes in each cache, zero for recurrent state.

    Windows and the layers that a codec is too coarse for stay dense, as the policy of
    `omlx_cache.codecs` decides.
    """
    paged = [index for index, leaf in enumerate(leaves) if leaf.kind == "paged"]
    last = paged[-1] if paged and codec in DENSE_LAST else -1
    sizes = []
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, Attention):
            sizes.append(Sides(0, 0))
            continue
        encoded = leaf.kind == "paged" and index != last
        key_half, value_half = HALVES[codec if encoded else "dense"]
        sizes.append(
            Sides(
                leaf.heads * vector_bytes(key_half, leaf.key_dim, itemsize),
                leaf.heads * vector_bytes(value_half, leaf.value_dim, itemsize),
            )
        )
    return sizes


def vector_bytes(half: str, dim: int, itemsize: int) -> int:
    """Return the bytes of one head's vector of `dim` channels; dense where the codec cannot."""
    dense = dim * itemsize
    if half == "dense" or dim == 0:
        return dense
    bits = int(half[-1])
    words = 4 * -(-dim * bits // 32)
    if half.startswith("turbo"):
        return words + 2 if TURBO_DIMS.start <= dim < TURBO_DIMS.stop else dense
    for group in GROUP_SIZES:
        if dim % group == 0:
            return words + 2 * itemsize * (dim // group)
    return dense
