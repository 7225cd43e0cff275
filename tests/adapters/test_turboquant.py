"""mlx-vlm's TurboQuant cache where mlx-vlm is not installed; tests/peers asks the real one."""

from types import SimpleNamespace
from typing import NamedTuple

import mlx.core as mx
import pytest

from omlx_cache import UnsupportedCache
from omlx_cache.adapters.kv import TurboQuantKVCacheAdapter
from omlx_cache.codecs import turbo_tables
from omlx_cache.codecs.turbo import TurboCodec


class State(NamedTuple):
    norms: mx.array
    indices: mx.array


class Other(NamedTuple):
    low: mx.array
    high: mx.array


ADAPTER = TurboQuantKVCacheAdapter()
NORMS = mx.zeros((1, 2, 5), mx.float16)
INDICES = mx.zeros((1, 2, 5, 16), mx.uint32)


def live(**changes: object) -> SimpleNamespace:
    """A cache with the fields of mlx-vlm's, holding five tokens of real codes."""
    parts = [TurboCodec(128, 4, s, "plain").encode(mx.ones((1, 2, 5, 128))) for s in (0, 1)]
    keys, values = (State(p["norms"], p["indices"]) for p in parts)
    codecs = [codec_like(TurboCodec(128, 4, seed, "plain")) for seed in (0, 1)]
    fields = {"bits": 4.0, "key_bits": 4.0, "value_bits": 4.0, "seed": 0, "offset": 3}
    arrays = {"keys": keys, "values": values, "key_codec": codecs[0], "value_codec": codecs[1]}
    return SimpleNamespace(**{**fields, **arrays, **changes})


def codec_like(codec: TurboCodec) -> SimpleNamespace:
    levels = mx.array(turbo_tables.codebook(codec.dim, codec.bits))
    signs = mx.array(turbo_tables.signs(codec.dim, codec.seed))
    return SimpleNamespace(dim=codec.dim, bits=codec.bits, codebook=levels, signs=signs)


def test_packed_arrays_are_read_up_to_the_offset_with_their_codecs() -> None:
    cache = live()
    arrays = ADAPTER.arrays(cache)
    assert arrays["keys.indices"].shape == (1, 2, 3, 16)
    assert arrays["values.norms"].shape == (1, 2, 3)
    packing = ADAPTER.packing(cache)
    assert packing is not None
    assert {side: form.dim for side, form in packing.forms.items()} == {"keys": 128, "values": 128}
    assert packing.codec("keys", 128) == TurboCodec(128, 4, 0, "plain")
    assert packing.codec("values", 128) == TurboCodec(128, 4, 1, "plain")
    assert ADAPTER.phase(cache) == {"key_dim": 128, "value_dim": 128}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"value_codec": None}, "no codec"),
        ({"key_bits": 2.5}, "whole bits"),
        ({"key_bits": 3.0}, "3.0 bits"),
        ({"seed": 1}, "dialect"),
        ({"offset": 6}, "fit"),
        ({"keys": State(NORMS, mx.zeros((1, 2, 5, 12), mx.uint32))}, "fit"),
        ({"keys": (NORMS, INDICES)}, "tuple"),
        ({"keys": NORMS}, "array"),
        ({"keys": Other(NORMS, INDICES)}, "Other"),
        ({"keys": State(NORMS.astype(mx.float32), INDICES)}, "norms and indices"),
        ({"keys": State(NORMS, INDICES.astype(mx.int32))}, "norms and indices"),
        ({"keys": State(NORMS[:, :, :4], INDICES)}, "one sequence"),
        ({"keys": State(NORMS, INDICES[0])}, "one sequence"),
        ({"keys": State(*(mx.concatenate([a, a]) for a in (NORMS, INDICES)))}, "one sequence"),
    ],
)
def test_state_that_cannot_be_kept_packed_is_refused_with_a_reason(
    changes: dict[str, object], word: str
) -> None:
    with pytest.raises(UnsupportedCache, match=word):
        ADAPTER.arrays(live(**changes))
