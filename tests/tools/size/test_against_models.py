"""The traced sizes against what mlx-lm's own caches hold after a real forward pass."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import cache as upstream

from fidelity.mixtures import NAMES as WORKING
from fidelity.mixtures import one_of_each
from kit.zoo import FAMILIES, build
from omlx_cache.adapters.base import GroupSpec
from omlx_cache.codecs.identity import CODEC_NAMES
from omlx_cache.codecs.policy import CodecPolicy, LayerShape
from omlx_cache.kv import trim_to_offset
from omlx_cache.pages.layout import Leaf, layout_of
from omlx_cache.tools.size import SizingError, estimate
from omlx_cache.tools.size.trace import trace

NAMES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}
MEASURED = one_of_each(name for name in WORKING if name != "deepseek_v41")
LENGTH = 10


def configuration(name: str) -> dict[str, Any]:
    family = FAMILIES[name]
    return {**family.config, "torch_dtype": NAMES[family.dtype]}


def used_leaves(name: str) -> list[Leaf]:
    """The caches of a model that has computed `LENGTH` tokens, without slack."""
    model = build(name)
    caches = upstream.make_prompt_cache(model)
    mx.eval(model(mx.array([list(range(1, LENGTH + 1))]), cache=caches))
    trim_to_offset(caches)
    return [leaf for leaf in layout_of(caches).leaves if leaf.arrays()]


def held(leaves: list[Leaf]) -> Mapping[GroupSpec, int]:
    sizes: dict[GroupSpec, int] = {}
    for leaf in leaves:
        sizes[leaf.group] = sizes.get(leaf.group, 0) + leaf.cache.nbytes
    return sizes


@pytest.mark.parametrize("name", MEASURED)
def test_every_array_of_every_cache_is_accounted_for(name: str) -> None:
    leaves = used_leaves(name)
    traced = trace(configuration(name))
    result = estimate(traced, context=LENGTH)
    computed = {(g.kind, g.window): (g.layers, g.context_bytes) for g in result.groups}
    assert computed == {
        (group.kind, group.window): (sum(leaf.group == group for leaf in leaves), nbytes)
        for group, nbytes in held(leaves).items()
    }
    assert traced.notes == ()


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text", "deepseek_v3", "minimax_m3_vl"])
def test_encoded_sizes_are_the_codecs_own(name: str, codec: Any) -> None:
    leaves = used_leaves(name)
    sides = [tuple(leaf.arrays()[side] for side in ("keys", "values")) for leaf in leaves]
    shapes = [
        LayerShape(leaf.group.kind, keys.shape[-1], values.shape[-1], keys.dtype)
        for leaf, (keys, values) in zip(leaves, sides, strict=True)
    ]
    keys_bytes = values_bytes = 0
    for codecs, (keys, values) in zip(CodecPolicy(codec).plan(shapes), sides, strict=True):
        keys_bytes += sum(part.nbytes for part in codecs.keys.encode(keys).values())
        values_bytes += sum(part.nbytes for part in codecs.values.encode(values).values())
    result = estimate(trace(configuration(name)), context=LENGTH, codec=codec)
    assert (result.key_bytes, result.value_bytes) == (keys_bytes, values_bytes)


def test_a_state_that_grows_with_the_tokens_is_refused() -> None:
    with pytest.raises(SizingError, match="grows"):
        trace(configuration("deepseek_v41"))
