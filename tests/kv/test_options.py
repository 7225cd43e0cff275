"""Options: what they change, where they are refused, and what survives copies and conversions."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models import cache as upstream

from kit.versions import keys_and_values, whole_state
from kv.drive import assert_same, chunk, fed
from omlx_cache.kv import (
    CapacityWarning,
    Geometric,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)


def test_past_max_size_it_grows_by_a_step_that_is_given_and_warns_once() -> None:
    cache, theirs = KVCache(max_size=10), upstream.KVCache()
    fed(cache, 10), fed(theirs, 10)
    with pytest.warns(CapacityWarning, match="max_size=10 tokens now holds 11") as caught:
        fed(cache, *[1] * 600)
    fed(theirs, *[1] * 600)
    assert_same(cache.keys_and_values(), keys_and_values(theirs))
    assert len(caught) == 1
    assert cache.keys.shape[2] <= 610 * 1.25 + 256
    with pytest.warns(CapacityWarning):
        stepped = fed(KVCache(max_size=10, step=7), 15)
    assert stepped.keys.shape[2] == 21
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed(copy.deepcopy(stepped), 600)


@pytest.mark.parametrize(
    "options", [{"max_size": 0}, {"step": 0}, {"step": 2.5}, {"max_size": True}]
)
def test_an_option_below_one_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be an integer of at least 1"):
        KVCache(**options)
    with pytest.raises(ValueError, match="must be an integer"):
        QuantizedKVCache(**options)


@pytest.mark.parametrize("options", [{}, {"max_size": 400}, {"step": 16}, {"growth": Geometric()}])
def test_to_quantized_holds_upstreams_bits_and_goes_on(options: dict[str, Any]) -> None:
    ours = fed(KVCache(**options), 20).to_quantized(group_size=32, bits=4)
    theirs = fed(upstream.KVCache(), 20).to_quantized(group_size=32, bits=4)
    assert isinstance(ours, QuantizedKVCache)
    assert_same(ours.keys_and_values(), keys_and_values(theirs))
    if not options:
        assert_same(whole_state(ours), whole_state(theirs))
    for at in range(40):
        keys, values = chunk(90 + at, 1, 9, "float16")
        assert_same(ours.update_and_fetch(keys, values), theirs.update_and_fetch(keys, values))
    assert (ours.max_size, ours.growth) == (options.get("max_size"), options.get("growth"))


def test_prompt_cache_files_of_ours_are_read_by_mlx_lm(tmp_path: Path) -> None:
    caches = [
        fed(KVCache(max_size=50), 20),
        fed(QuantizedKVCache(32, 4, max_size=50), 20),
        fed(RotatingKVCache(8, 2, capacity=8), 20),
        upstream.CacheList(fed(KVCache(step=7), 3), fed(RotatingKVCache(8), 5)),
    ]
    path = str(tmp_path / "prompt.safetensors")
    upstream.save_prompt_cache(path, caches)
    loaded = upstream.load_prompt_cache(path)
    for mine, other in zip(caches, loaded, strict=True):
        children = zip(
            getattr(mine, "caches", [mine]), getattr(other, "caches", [other]), strict=True
        )
        for ours, theirs in children:
            for length in (1, 1, 6):
                keys, values = chunk(length, 1, length, "float16")
                assert_same(
                    ours.update_and_fetch(keys, values), theirs.update_and_fetch(keys, values)
                )
