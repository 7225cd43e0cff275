"""Recognising mlx-vlm's cache where mlx-vlm is not installed; tests/peers asks the real one."""

from types import SimpleNamespace
from typing import NamedTuple

import mlx.core as mx
import pytest

from omlx_cache.codecs import TurboCodec
from omlx_cache.codecs.peer import PeerMismatch, is_mse_state, is_peer_cache, read_peer


class State(NamedTuple):
    norms: mx.array
    indices: mx.array


class Other(NamedTuple):
    low: mx.array
    high: mx.array


NORMS = mx.zeros((1, 2, 5), mx.float16)
INDICES = mx.zeros((1, 2, 5, 16), mx.uint32)


def test_named_norms_and_indices_are_recognised() -> None:
    assert is_mse_state(State(NORMS, INDICES))


@pytest.mark.parametrize(
    "value",
    [
        None,
        (NORMS, INDICES),
        Other(NORMS, INDICES),
        State(NORMS.astype(mx.float32), INDICES),
        State(NORMS, INDICES.astype(mx.int32)),
        State(NORMS[:, :, :4], INDICES),
        State(NORMS, INDICES[0]),
        NORMS,
    ],
    ids=["none", "tuple", "names", "norm dtype", "index dtype", "tokens", "rank", "array"],
)
def test_anything_else_is_not_taken_for_packed_state(value: object) -> None:
    assert not is_mse_state(value)


def test_class_of_the_same_name_from_elsewhere_is_no_peer_cache() -> None:
    assert not is_peer_cache(type("TurboQuantKVCache", (), {"__module__": "mine"})())
    assert not is_peer_cache(type("TurboQuantKVCache", (), {"__module__": "mlx_vlm_fork"})())
    assert is_peer_cache(type("TurboQuantKVCache", (), {"__module__": "mlx_vlm.turboquant"})())


def live(**changes: object) -> SimpleNamespace:
    """A cache with the fields of mlx-vlm's, holding five tokens of real codes."""
    parts = [TurboCodec(128, 4, s, "plain").encode(mx.ones((1, 2, 5, 128))) for s in (0, 1)]
    keys, values = (State(p["norms"], p["indices"]) for p in parts)
    codecs = [codec_like(TurboCodec(128, 4, seed, "plain")) for seed in (0, 1)]
    fields = {"bits": 4.0, "key_bits": 4.0, "value_bits": 4.0, "seed": 0, "offset": 3}
    arrays = {"keys": keys, "values": values, "key_codec": codecs[0], "value_codec": codecs[1]}
    return SimpleNamespace(**{**fields, **arrays, **changes})


def codec_like(codec: TurboCodec) -> SimpleNamespace:
    from omlx_cache.codecs import turbo_tables

    levels = mx.array(turbo_tables.codebook(codec.dim, codec.bits))
    signs = mx.array(turbo_tables.signs(codec.dim, codec.seed))
    return SimpleNamespace(dim=codec.dim, bits=codec.bits, codebook=levels, signs=signs)


def test_packed_arrays_are_read_up_to_the_offset_with_their_codecs() -> None:
    layer = read_peer(live())
    assert layer.key_codec == TurboCodec(128, 4, 0, "plain")
    assert layer.value_codec == TurboCodec(128, 4, 1, "plain")
    assert layer.keys["indices"].shape == (1, 2, 3, 16)
    assert layer.values["norms"].shape == (1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"offset": 0}, "empty"),
        ({"keys": None}, "empty"),
        ({"value_codec": None}, "no codec"),
        ({"key_bits": 2.5}, "integer bits"),
        ({"seed": 1}, "dialect"),
        ({"offset": 6}, "fit"),
        ({"keys": (NORMS, INDICES)}, "tuple"),
        (
            {"keys": State(mx.zeros((2, 2, 5), mx.float16), mx.zeros((2, 2, 5, 16), mx.uint32))},
            "batch",
        ),
        ({"keys": State(NORMS, mx.zeros((1, 2, 5, 12), mx.uint32))}, "fit"),
    ],
)
def test_state_that_cannot_be_kept_packed_is_refused_with_a_reason(
    changes: dict[str, object], word: str
) -> None:
    with pytest.raises(PeerMismatch, match=word):
        read_peer(live(**changes))
