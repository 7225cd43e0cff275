"""Reading over-allocated buffers, copying them, and giving their slack back."""

import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as upstream
from mlx_lm.models.base import quantized_scaled_dot_product_attention

from omlx_cache.kv import KVCache, trim_to_offset

from .caches_growth import DIM, HEADS, LAYERS
from .caches_probe import MB, Probe, Row, settle

QUERY_HEADS = 4 * HEADS
OVERSIZE = (1.0, 1.25, 4.0, 8.0)
REPEATS = {1: 9, 16: 3}
BUFFER, USED = 32_768, 4_696


def attention(tokens: int) -> Iterator[Row]:
    """Attention over a tight cache, and over slices of larger buffers; interleaved."""
    for length, repeats in REPEATS.items():
        queries = _normal((1, QUERY_HEADS, length, DIM))
        runs = {
            _name(factor): _dense_run(queries, tokens, int(tokens * factor)) for factor in OVERSIZE
        }
        yield from _timed(
            f"attention, {length} {'query' if length == 1 else 'queries'}", tokens, runs, repeats
        )
        del runs
        settle()
    queries = _normal((1, HEADS, 1, DIM))
    runs = {
        _name(factor): _quantised_run(queries, tokens, int(tokens * factor)) for factor in OVERSIZE
    }
    yield from _timed("attention, 1 query, 8-bit cache", tokens, runs, REPEATS[16])


def copies(tokens: int) -> Iterator[Row]:
    """A deep copy of a cache with 4x its tokens allocated, and the first append to it."""
    for name, planned in (("mlx-lm", False), ("planned", True)):
        settle()
        yield Row("deep copy", tokens, name, _copied(tokens, planned))


def _copied(tokens: int, planned: bool) -> dict[str, float]:
    caches: list[Any] = [KVCache(max_size=4 * tokens) for _ in range(LAYERS)]
    _fill(caches, tokens)
    if not planned:
        caches = [upstream.KVCache.from_state(cache.state) for cache in caches]
    new = _normal((1, HEADS, 1, DIM))
    probe = Probe()
    twins = copy.deepcopy(caches)
    figures = {"copy MB": probe.active_mb}
    if planned:
        for twin in twins:
            twin.max_size = tokens + 256

    def append() -> None:
        for twin in twins:
            twin.update_and_fetch(new, new)
        mx.eval([twin.state for twin in twins])

    probe.step(append)
    return figures | {"first append ms": probe.worst_ms, "then MB": probe.active_mb}


def slack() -> Iterator[Row]:
    """What a buffer of 32,768 tokens with 4,696 in use holds, as it is and after each remedy."""
    remedies: dict[str, Callable[[list[Any]], Any]] = {
        "as allocated": lambda caches: None,
        "slice and eval": _slice_and_eval,
        "trim_to_offset": trim_to_offset,
    }
    for name, remedy in remedies.items():
        caches = [KVCache(max_size=BUFFER) for _ in range(LAYERS)]
        probe = Probe()
        _fill(caches, USED)
        begin = time.perf_counter()
        remedy(caches)
        spent = time.perf_counter() - begin
        settle()
        yield Row(
            "slack",
            USED,
            name,
            {
                "nbytes MB": sum(cache.nbytes for cache in caches) / MB,
                "really held MB": probe.active_mb,
                "ms": spent * 1e3,
            },
        )
        del caches


def _slice_and_eval(caches: list[Any]) -> None:
    """Cut each cache to its tokens as is often proposed: the parent stays alive."""
    for cache in caches:
        cache.keys = cache.keys[..., : cache.offset, :]
        cache.values = cache.values[..., : cache.offset, :]
        mx.eval(cache.keys, cache.values)


def _fill(caches: list[Any], tokens: int) -> None:
    for cache in caches:
        new = _normal((1, HEADS, tokens, DIM))
        cache.update_and_fetch(new, new)
        mx.eval(cache.state)


def _name(factor: float) -> str:
    return "tight" if factor == 1.0 else f"slice of {factor:g}x"


def _dense_run(queries: mx.array, tokens: int, columns: int) -> Callable[[], None]:
    keys, values = _normal((1, HEADS, columns, DIM)), _normal((1, HEADS, columns, DIM))

    def run() -> None:
        mx.eval(
            mx.fast.scaled_dot_product_attention(
                queries, keys[..., :tokens, :], values[..., :tokens, :], scale=0.1
            )
        )

    return run


def _quantised_run(queries: mx.array, tokens: int, columns: int) -> Callable[[], None]:
    buffers = [mx.quantize(_normal((1, HEADS, columns, DIM)), group_size=64, bits=8)] * 2
    mx.eval(buffers)

    def run() -> None:
        keys, values = (tuple(part[..., :tokens, :] for part in side) for side in buffers)
        mx.eval(quantized_scaled_dot_product_attention(queries, keys, values, 0.1, None, 64, 8))

    return run


def _timed(
    section: str, tokens: int, runs: dict[str, Callable[[], None]], repeats: int
) -> Iterator[Row]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    try:
        for repeat in range(repeats + 1):
            for name, run in runs.items():
                begin = time.perf_counter()
                run()
                if repeat:  # the first of each warms up
                    times[name].append((time.perf_counter() - begin) * 1e3)
    except RuntimeError as error:
        # MLX's CUDA back end has no quantised product for some strides.
        print(f"left out: {section} at {tokens} tokens: {error}", file=sys.stderr)
        return
    # The fastest of each: other work on the machine only ever adds.
    tight = min(times["tight"])
    for name, spent in times.items():
        yield Row(
            section,
            tokens,
            name,
            {
                "median ms": statistics.median(spent),
                "fastest ms": min(spent),
                "of tight": min(spent) / tight,
            },
        )


def _normal(shape: tuple[int, ...]) -> mx.array:
    made = mx.random.normal(shape).astype(mx.float16)
    mx.eval(made)
    return made
