"""Check our TurboQuant against the real mlx-vlm; exits with 1 and the names of what differs.

mlx-vlm is no dependency: `make test-peers` installs it in an environment of its own and runs this
there, with the project's folders on PYTHONPATH.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from checking import run_checks
from mlx_vlm import turboquant as theirs

from omlx_cache import UnsupportedCache
from omlx_cache.adapters import adapter_for
from omlx_cache.codecs import turbo, turbo_tables
from omlx_cache.codecs.turbo import TurboCodec

DIMS, BITS, SEEDS = (64, 80, 96, 128, 256), (1, 2, 3, 4, 8), (0, 1, 7)
TOKENS, HEADS = 70, 3


def sample(dim: int, seed: int, tokens: int = TOKENS) -> mx.array:
    drawn = np.random.default_rng(seed).normal(size=(1, HEADS, tokens, dim))
    return mx.array(drawn.astype(np.float32)).astype(mx.bfloat16)


def grid() -> Iterator[tuple[int, int, int]]:
    return ((dim, bits, seed) for dim in DIMS for bits in BITS for seed in SEEDS)


def peer_codec(dim: int, bits: int, seed: int) -> Any:
    return theirs._TurboQuantMSECodec(dim, bits, seed)


def tables_are_equal() -> None:
    for dim, bits, seed in grid():
        codec = peer_codec(dim, bits, seed)
        assert np.array_equal(np.array(codec.codebook), turbo_tables.codebook(dim, bits))
        if turbo_tables.is_power_of_two(dim):
            assert np.array_equal(np.array(codec.signs), turbo_tables.signs(dim, seed))
        else:
            assert np.array_equal(np.array(codec.rotation), turbo_tables.rotation(dim, seed))


def packing_is_equal() -> None:
    for dim in (1, 33, 80, 128):
        for bits in range(1, 9):
            drawn = np.random.default_rng(dim).integers(0, 1 << bits, (5, dim), dtype=np.uint8)
            words = theirs._pack_lowbit(mx.array(drawn), bits)
            assert mx.array_equal(words, turbo.pack(mx.array(drawn), bits)).item()
            assert np.array_equal(np.array(turbo.unpack(words, bits, dim)), drawn)


def plain_encoding_is_equal() -> None:
    for dim, bits, seed in grid():
        x = sample(dim, seed)
        state = peer_codec(dim, bits, seed).quantize(x)
        parts = TurboCodec(dim, bits, seed, norm="plain").encode(x)
        assert mx.array_equal(state.norms, parts["norms"]).item()
        assert mx.array_equal(state.indices, parts["indices"]).item(), (dim, bits, seed)


def they_decode_what_we_encode() -> None:
    for dim, bits, seed in grid():
        codec = TurboCodec(dim, bits, seed)
        parts = codec.encode(sample(dim, seed))
        state = theirs.TurboQuantMSEState(parts["norms"], parts["indices"])
        decoded = peer_codec(dim, bits, seed).dequantize(state)
        error = mx.max(mx.abs(decoded - codec.decode(parts, mx.float32))).item()
        assert error <= 1e-6 * float(mx.max(mx.abs(decoded)).item()), (dim, bits, seed, error)


def live_cache(dim: int, bits: float, seed: int, key_bits: float | None = None) -> Any:
    cache = theirs.TurboQuantKVCache(bits, seed=seed, key_bits=key_bits)
    for index, tokens in enumerate((33, 20, 17)):
        cache.update_and_fetch(sample(dim, index, tokens), sample(dim, index + 9, tokens))
    return cache


def what_cannot_be_kept_packed_is_refused() -> None:
    turned = live_cache(128, 4, 0)
    turned.key_codec.signs = -turned.key_codec.signs
    uncoded = live_cache(128, 4, 0)
    uncoded.value_codec = None
    for cache, word in (
        (live_cache(128, 3, 0, key_bits=2.5), "whole bits"),
        (turned, "dialect"),
        (uncoded, "no codec"),
    ):
        assert word in refusal(cache)


def refusal(cache: Any) -> str:
    """Return why the adapter refuses, or an empty text when it does not."""
    try:
        adapter_for(cache).arrays(cache)
    except UnsupportedCache as error:
        return str(error)
    return ""


def half_bits_that_mean_two_integers_are_kept() -> None:
    cache = live_cache(128, 3.5, 0)
    config = adapter_for(cache).config(cache)
    assert (config["key_bits"], config["value_bits"]) == (3, 4)


CHECKS: tuple[Callable[[], None], ...] = (
    tables_are_equal,
    packing_is_equal,
    plain_encoding_is_equal,
    they_decode_what_we_encode,
    half_bits_that_mean_two_integers_are_kept,
    what_cannot_be_kept_packed_is_refused,
)


def main() -> int:
    """Run every check and print one line for each."""
    title = f"mlx-vlm {importlib.metadata.version('mlx-vlm')}, mlx {mx.__version__}"
    return run_checks(title, CHECKS)


if __name__ == "__main__":
    sys.exit(main())
