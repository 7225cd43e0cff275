"""Codecs on the way through a store: packed in, packed out, decoded only for who wants it dense."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kit.sessions import Opener
from kit.zoo.family import FAMILIES, build_model
from omlx_cache import CommitResult, PrefixCache
from omlx_cache.control.cold_files import scan
from omlx_cache_storage.cold.page_reader import read_header

BLOCK = 64
OpenCache = Callable[..., PrefixCache]


@pytest.fixture(scope="module")
def model() -> Any:
    wide = {"hidden_size": 128, "num_hidden_layers": 3, "num_key_value_heads": 2, "head_dim": 64}
    family = FAMILIES["qwen3"]
    return build_model("qwen3", {**family.config, **wide}, mx.bfloat16, 7)


@pytest.fixture
def open_cache(model: Any, open_store: Opener) -> OpenCache:
    """Opens a cache in this test's directory; each call closes the store before it."""
    return lambda **changes: PrefixCache(model, open_store(block_size=BLOCK, **changes))


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def prefill(
    model: Any, cache: PrefixCache, tokens: list[int], **options: Any
) -> tuple[int, list[Any], CommitResult, mx.array]:
    with cache.session(tokens, **options) as session:
        for chunk in session.prefill_chunks(256):
            logits = model(mx.array([chunk]), cache=session.prompt_cache)
            mx.eval(logits)
        live = session.prompt_cache
        return session.cached_tokens, live, session.commit(), logits[0, -1]


def packed_arrays(caches: list[Any]) -> list[mx.array]:
    return [a[:, :, : c.offset] for c in caches for side in (c.keys, c.values) for a in side]


def test_packed_pages_are_never_dequantised_on_their_way_through(
    model: Any, open_cache: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = prompt(300)
    cache = open_cache()
    prefill(model, cache, tokens, kv_bits=8)

    def poison(*_: Any, **__: Any) -> None:
        raise AssertionError("a packed page was dequantised")

    monkeypatch.setattr(mx, "dequantize", poison)
    with cache.session([*tokens, 1], kv_bits=8) as session:
        assert session.cached_tokens == 300


def test_short_sequences_stay_dense_are_packed_as_upstream_would_and_long_ones_join_them(
    model: Any, open_cache: OpenCache
) -> None:
    head, whole = prompt(400)[:200], prompt(400)
    cache = open_cache(codec="affine8", min_quantize_tokens=256)
    _, live, _, _ = prefill(model, cache, head)
    with cache.session([*head, 1]) as session:
        assert session.cached_tokens == 200
        assert mx.array_equal(
            session.prompt_cache[0].keys[:, :, :200], live[0].keys[:, :, :200]
        ).item()
    upstream = [c.to_quantized(group_size=64, bits=8) for c in live]
    with cache.session([*head, 1], kv_bits=8) as session:
        assert session.cached_tokens == 200
        pairs = zip(*map(packed_arrays, (session.prompt_cache, upstream)), strict=True)
        assert all(mx.array_equal(ours, theirs).item() for ours, theirs in pairs)
    prefill(model, cache, whole)
    with cache.session([*whole, 1]) as session:
        assert session.cached_tokens == 400


@pytest.mark.parametrize("cold_codec", ["affine8", "turbo4"])
def test_a_cold_codec_leaves_hot_hits_exact_and_shrinks_the_files(
    model: Any, open_cache: OpenCache, tmp_path: Path, cold_codec: str
) -> None:
    tokens = prompt(600)
    cache = open_cache(cold_codec=cold_codec)
    _, live, stored, _ = prefill(model, cache, tokens)
    with cache.session([*tokens, 1]) as session:
        assert mx.array_equal(
            session.prompt_cache[0].keys[:, :, :600], live[0].keys[:, :, :600]
        ).item()
    assert cache.store.flush()
    on_disk = sum(
        int(np.prod(t.shape)) * {"BF16": 2, "U32": 4, "F16": 2}[t.dtype]
        for entry in scan(tmp_path / "cold")
        for t in read_header(entry.path).meta.tensors
    )
    assert on_disk < stored.nbytes * 0.75
    cache = open_cache(cold_codec=cold_codec)
    with cache.session([*tokens, 1]) as session:
        assert session.cached_tokens == 600
        decoded = session.prompt_cache[0].keys[:, :, :600].astype(mx.float32)
        exact = live[0].keys[:, :, :600].astype(mx.float32)
        assert 0 < (mx.mean((decoded - exact) ** 2) / mx.mean(exact**2)).item() < 0.05


def test_zstd_files_are_smaller_and_restore_bit_for_bit(
    model: Any, open_cache: OpenCache, tmp_path: Path
) -> None:
    tokens = prompt(600)
    cache = open_cache(cold_codec="zstd")
    _, live, stored, _ = prefill(model, cache, tokens)
    assert cache.store.flush()
    payload = sum(
        int(t.shape[0])
        for entry in scan(tmp_path / "cold")
        for t in read_header(entry.path).meta.tensors
        if t.name == "planes"
    )
    assert 0 < payload < stored.nbytes * 0.9
    with open_cache(cold_codec="zstd").session([*tokens, 1]) as session:
        assert session.cached_tokens == 600
        for mine, theirs in zip(session.prompt_cache, live, strict=True):
            assert mx.array_equal(mine.keys[:, :, :600], theirs.keys[:, :, :600]).item()
            assert mx.array_equal(mine.values[:, :, :600], theirs.values[:, :, :600]).item()
    with open_cache().session([*tokens, 1]) as session:
        assert session.cached_tokens == 600


@pytest.mark.parametrize("codec", ["affine8", "turbo4"])
def test_encoding_and_decoding_peak_at_a_fifth_over_what_they_leave(
    model: Any, open_cache: OpenCache, codec: str
) -> None:
    tokens = prompt(3000)
    cache = open_cache(codec=codec, hot_cache_only=True)
    with cache.session(tokens) as session:
        for chunk in session.prefill_chunks(512):
            # What keys and values hold makes no difference to memory.
            for layer in session.prompt_cache:
                keys = mx.random.normal((1, 2, len(chunk), 64), mx.bfloat16)
                mx.eval(layer.update_and_fetch(keys, keys + 1))
        mx.eval([c.state for c in session.prompt_cache])
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        stored = session.commit()
        after, peak = mx.get_active_memory(), mx.get_peak_memory()
    assert after - before <= stored.nbytes * 1.05
    assert peak - before <= stored.nbytes * 1.2
    del session, chunk, layer, keys
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    with cache.session([*tokens, 1]) as restored:
        assert restored.cached_tokens == 3000
        delivered = sum(c.keys.nbytes + c.values.nbytes for c in restored.prompt_cache)
        assert mx.get_peak_memory() - before <= delivered * 1.2


def test_sessions_of_other_bits_do_not_meet(model: Any, open_cache: OpenCache) -> None:
    tokens = prompt(300)
    cache = open_cache()
    prefill(model, cache, tokens, kv_bits=8)
    for options in ({"kv_bits": 4}, {"kv_bits": 8, "kv_group_size": 32}, {}):
        with cache.session(tokens, **options) as session:
            assert (session.cached_tokens, session.miss_reason) == (0, "absent")
