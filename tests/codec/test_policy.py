import mlx.core as mx
import pytest

from omlx_cache.codecs.codec import AffineCodec, Codec
from omlx_cache.codecs.identity import check_codec_name
from omlx_cache.codecs.policy import CodecPolicy, LayerCodecs, LayerShape
from omlx_cache.codecs.turbo import TurboCodec

PAGED = LayerShape("paged", 128, 128, mx.bfloat16)
WINDOW = LayerShape("window", 128, 128, mx.bfloat16)
STATE = LayerShape("state", 0, 0, mx.float32)


def test_dense_policy_touches_nothing() -> None:
    plan = CodecPolicy("dense").plan([PAGED, WINDOW, STATE])
    assert plan == (LayerCodecs(),) * 3
    assert not CodecPolicy("dense").encodes(10**6)


@pytest.mark.parametrize(
    ("policy", "layer", "keys", "values"),
    [
        (CodecPolicy("k8v4"), PAGED, AffineCodec(8, 64), AffineCodec(4, 64)),
        (
            CodecPolicy("turbo4", seed=3, dense_last=0),
            LayerShape("paged", 512, 64, mx.float16),
            TurboCodec(512, 4, 3),
            TurboCodec(64, 4, 4),
        ),
        (
            CodecPolicy("affine8", quantize_windows=True),
            WINDOW,
            AffineCodec(8, 64),
            AffineCodec(8, 64),
        ),
        (CodecPolicy("affine8", quantize_windows=True), STATE, None, None),
    ],
)
def test_keys_and_values_get_codecs_of_their_own(
    policy: CodecPolicy, layer: LayerShape, keys: Codec | None, values: Codec | None
) -> None:
    (plan,) = policy.plan([layer])
    assert (plan.keys, plan.values) == (keys, values)


@pytest.mark.parametrize("name", ["turbo4", "turbo3", "turbo2", "affine4"])
def test_the_last_paged_layer_windows_and_states_stay_dense(name: str) -> None:
    plan = CodecPolicy(check_codec_name(name)).plan([PAGED, PAGED, STATE, PAGED, WINDOW])
    dense = [codecs == LayerCodecs() for codecs in plan]
    assert dense == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("dim", "keys"),
    [(128, AffineCodec(8, 64)), (96, AffineCodec(8, 32)), (80, None), (0, None)],
)
def test_affine_takes_groups_of_64_else_32_else_stays_dense(dim: int, keys: object) -> None:
    (plan,) = CodecPolicy("affine8").plan([LayerShape("paged", dim, 128, mx.float16)])
    assert plan.keys == keys
    assert plan.values == AffineCodec(8, 64)


def test_short_sequences_stay_dense() -> None:
    policy = CodecPolicy("affine8", min_quantize_tokens=256)
    assert [policy.encodes(n) for n in (0, 255, 256, 257)] == [False, False, True, True]
    assert CodecPolicy("affine8", min_quantize_tokens=0).encodes(0)


@pytest.mark.parametrize("field", ["min_quantize_tokens", "dense_last", "seed"])
def test_negative_numbers_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match="negative"):
        CodecPolicy("affine8", **{field: -1})
