"""Our caches against mlx-lm's: same updates, trims, copies; same bits."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models import cache as upstream

from kit.examples import examples, some
from kv.drive import DTYPES, Pair, lengths_around, run, scripts
from omlx_cache.kv import Geometric, KVCache, QuantizedKVCache, RotatingKVCache

STEP = 8
WINDOW = 12
quick = settings(
    max_examples=examples(20, 250), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Five(upstream.KVCache):
    """mlx-lm's cache with another step."""

    step = 5


CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], bool]] = {
    "kv": (KVCache, upstream.KVCache, True),
    "kv, step": (lambda: KVCache(step=5), Five, True),
    "kv, room": (lambda: KVCache(max_size=400), upstream.KVCache, False),
    "kv, geometric": (lambda: KVCache(growth=Geometric(1.25, step=4)), upstream.KVCache, False),
    **{
        f"quantized, {bits} bits, room {room}": (
            lambda bits=bits, room=room: QuantizedKVCache(32, bits, max_size=room),
            lambda bits=bits: upstream.QuantizedKVCache(32, bits),
            room is None,
        )
        for bits in (3, 4, 8)
        for room in (None, 400)
    },
    **{
        f"rotating, keep {keep}, capacity {capacity}": (
            lambda keep=keep, capacity=capacity: RotatingKVCache(WINDOW, keep, capacity=capacity),
            lambda keep=keep: upstream.RotatingKVCache(WINDOW, keep),
            capacity is None,
        )
        for keep in (0, 4)
        for capacity in (None, 1, WINDOW // 2, WINDOW, 10 * WINDOW)
    },
}
"""Ours, mlx-lm's, and whether their state is the same, too: what is planned allocates otherwise."""
EVERY_RUN = (
    "kv, step",
    "kv, room",
    "kv, geometric",
    "quantized, 4 bits, room 400",
    f"rotating, keep 4, capacity {WINDOW // 2}",
    f"rotating, keep 4, capacity {WINDOW}",
    f"rotating, keep 0, capacity {10 * WINDOW}",
)


@pytest.fixture(autouse=True)
def short_upstream_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (upstream.RotatingKVCache, upstream.KVCache, upstream.QuantizedKVCache):
        monkeypatch.setattr(cls, "step", STEP)


@pytest.mark.parametrize("name", some(list(CASES), *EVERY_RUN))
@quick
@given(data=st.data(), batch=st.sampled_from([1, 3]), dtype=st.sampled_from(sorted(DTYPES)))
def test_a_cache_returns_what_upstream_returns(
    name: str, data: st.DataObject, batch: int, dtype: str
) -> None:
    ours, theirs, same_state = CASES[name]
    # Options are no part of a state.
    reload = "step" not in name and (same_state or "rotating" not in name)
    edges = (STEP, WINDOW, 2 * WINDOW) if "rotating" in name else (STEP, 2 * STEP)
    script = data.draw(scripts(lengths_around(*edges), reload=reload))
    run(Pair(ours(), theirs(), batch, dtype, same_state=same_state), script)
