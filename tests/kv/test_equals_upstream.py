"""Our caches against mlx-lm's: same updates, trims, copies; same bits."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models import cache as upstream

from kit.examples import examples
from kit.versions import reloaded
from kv.drive import DTYPES, Pair, lengths_around, run, scripts
from omlx_cache.kv import Geometric, KVCache, QuantizedKVCache, RotatingKVCache

STEP = 8
WINDOW = 12
quick = settings(
    max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
batches = st.sampled_from([1, 3])
dtypes = st.sampled_from(sorted(DTYPES))


class ShortStep(upstream.KVCache):
    """mlx-lm's cache at a step that a short test crosses often."""

    step = STEP


class ShortStepQuantized(upstream.QuantizedKVCache):
    step = STEP


@pytest.fixture(autouse=True)
def short_upstream_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (upstream.RotatingKVCache, upstream.KVCache, upstream.QuantizedKVCache):
        monkeypatch.setattr(cls, "step", STEP)


@pytest.mark.nightly
@quick
@given(scripts(lengths_around(STEP, 2 * STEP)), batches, dtypes)
def test_kv_cache_without_options_is_upstream_state_included(
    script: Any, batch: int, dtype: str
) -> None:
    run(Pair(KVCache(), upstream.KVCache(), batch, dtype, same_state=True), script)


@quick
@given(scripts(lengths_around(STEP), reload=False), batches, dtypes)
def test_kv_cache_with_step_is_upstream_with_that_step(script: Any, batch: int, dtype: str) -> None:
    class Five(upstream.KVCache):
        step = 5

    run(Pair(KVCache(step=5), Five(), batch, dtype, same_state=True), script)


@quick
@given(scripts(lengths_around(STEP)), batches, dtypes, st.sampled_from(["room", "geometric"]))
def test_planned_kv_cache_returns_what_upstream_returns(
    script: Any, batch: int, dtype: str, plan: str
) -> None:
    ours = KVCache(max_size=400) if plan == "room" else KVCache(growth=Geometric(1.25, step=4))
    run(Pair(ours, upstream.KVCache(), batch, dtype, same_state=False), script)


@pytest.mark.nightly
@quick
@given(scripts(lengths_around(STEP)), batches, dtypes, st.sampled_from([4, 8]))
def test_quantized_without_options_is_upstream_state_included(
    script: Any, batch: int, dtype: str, bits: int
) -> None:
    ours, theirs = QuantizedKVCache(32, bits), upstream.QuantizedKVCache(32, bits)
    run(Pair(ours, theirs, batch, dtype, same_state=True), script)


@pytest.mark.nightly
@quick
@given(scripts(lengths_around(STEP)), batches, dtypes, st.sampled_from([3, 4, 8]))
def test_planned_quantized_returns_what_upstream_returns(
    script: Any, batch: int, dtype: str, bits: int
) -> None:
    ours, theirs = QuantizedKVCache(32, bits, max_size=400), upstream.QuantizedKVCache(32, bits)
    run(Pair(ours, theirs, batch, dtype, same_state=False), script)


@pytest.mark.nightly
@quick
@given(scripts(lengths_around(STEP, WINDOW, 2 * WINDOW)), batches, dtypes, st.sampled_from([0, 4]))
def test_rotating_without_options_is_upstream_state_included(
    script: Any, batch: int, dtype: str, keep: int
) -> None:
    ours, theirs = RotatingKVCache(WINDOW, keep), upstream.RotatingKVCache(WINDOW, keep)
    run(Pair(ours, theirs, batch, dtype, same_state=True), script)


@quick
@given(
    scripts(lengths_around(STEP, WINDOW, 2 * WINDOW), reload=False),
    batches,
    dtypes,
    st.sampled_from([0, 4]),
    st.sampled_from([1, WINDOW // 2, WINDOW, 10 * WINDOW]),
)
def test_planned_rotating_returns_what_upstream_returns_column_for_column(
    script: Any, batch: int, dtype: str, keep: int, capacity: int
) -> None:
    ours = RotatingKVCache(WINDOW, keep, capacity=capacity)
    run(Pair(ours, upstream.RotatingKVCache(WINDOW, keep), batch, dtype, same_state=False), script)


@quick
@given(scripts(lengths_around(WINDOW), reload=False), st.sampled_from([0, 4]))
def test_upstream_continues_from_a_planned_rotating_state(script: Any, keep: int) -> None:
    pair = Pair(
        RotatingKVCache(WINDOW, keep, capacity=WINDOW),
        upstream.RotatingKVCache(WINDOW, keep),
        1,
        "float32",
        same_state=False,
    )
    run(pair, script)
    if pair.ours.keys is not None:
        pair.ours = reloaded(pair.ours, upstream.RotatingKVCache)
        run(pair, [("update", 1), ("update", 5), ("update", WINDOW + 1), ("update", 1)])
