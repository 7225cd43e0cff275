"""The computed sizes against what mlx-lm's own caches hold after a real forward pass."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import cache as upstream

from kit.zoo import FAMILIES, build
from omlx_cache.codecs.names import CODEC_NAMES
from omlx_cache.codecs.policy import CodecPolicy, LayerShape
from omlx_cache.kv import trim_to_offset
from omlx_cache.tools.size import Attention, SizingError, State, estimate, layout_of
from omlx_cache.tools.size.codecs import token_bytes

NAMES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}
MEASURED = sorted(
    name for name, family in FAMILIES.items() if not family.broken and name != "deepseek_v41"
)


def leaves(caches: Any) -> list[Any]:
    found = []
    for cache in caches:
        found.extend(leaves(cache.caches) if isinstance(cache, upstream.CacheList) else [cache])
    return found


def configuration(name: str) -> dict[str, Any]:
    family = FAMILIES[name]
    return {**family.config, "torch_dtype": NAMES[family.dtype]}


@pytest.mark.parametrize("name", MEASURED)
def test_every_array_of_every_cache_is_accounted_for(name: str) -> None:
    model, length = build(name), 10
    caches = upstream.make_prompt_cache(model)
    mx.eval(model(mx.array([list(range(1, length + 1))]), cache=caches))
    trim_to_offset(caches)
    held = [cache.nbytes for cache in leaves(caches) if not cache.empty()]
    layout = layout_of(configuration(name))
    sizes = token_bytes(layout.leaves, "dense", layout.itemsize)
    expected = [
        leaf.size(layout.itemsize) if isinstance(leaf, State) else sum(sides) * length
        for leaf, sides in zip(layout.leaves, sizes, strict=True)
    ]
    assert expected == held
    assert layout.notes == ()
    total = estimate(configuration(name), context=length)
    assert total.context_bytes == sum(held)


@pytest.mark.parametrize("name", MEASURED)
def test_windows_are_those_of_the_caches(name: str) -> None:
    caches = leaves(upstream.make_prompt_cache(build(name)))
    windows = [
        getattr(cache, "max_size", 0) or getattr(cache, "chunk_size", 0)
        for cache in caches
        if not isinstance(cache, upstream.ArraysCache)
    ]
    layout = layout_of(configuration(name))
    computed = [leaf.window for leaf in layout.leaves if isinstance(leaf, Attention)]
    assert computed == windows


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text", "deepseek_v3", "minimax_m3_vl"])
def test_encoded_sizes_are_the_codecs_own(name: str, codec: Any) -> None:
    dtype = FAMILIES[name].dtype
    layout = layout_of(configuration(name))
    shapes = [
        LayerShape(
            "window" if leaf.kind == "window" else "paged", leaf.key_dim, leaf.value_dim, dtype
        )
        for leaf in layout.leaves
        if isinstance(leaf, Attention)
    ]
    plan = CodecPolicy(codec).plan(shapes)
    computed = token_bytes(layout.leaves, codec, layout.itemsize)
    for leaf, codecs, sides in zip(layout.leaves, plan, computed, strict=True):
        assert isinstance(leaf, Attention)
        for encoder, dim, size in (
            (codecs.keys, leaf.key_dim, sides.keys),
            (codecs.values, leaf.value_dim, sides.values),
        ):
            sample = mx.random.normal((1, leaf.heads, 1, dim)).astype(dtype)
            if dim == 0:
                assert size == 0
                continue
            parts = encoder.encode(sample)
            assert size == sum(part.nbytes for part in parts.values())


def test_a_private_layout_is_refused_by_name() -> None:
    with pytest.raises(SizingError, match="deepseek_v41 is not understood"):
        layout_of(configuration("deepseek_v41"))
