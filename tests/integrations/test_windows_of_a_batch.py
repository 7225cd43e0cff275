"""What a batch of windows stores is what each row computed, whatever the lengths of the others."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import BatchRotatingKVCache, RotatingKVCache, make_prompt_cache

from kit import zoo
from kit.drive import feed, random_tokens, settings
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.adapters.registry import extracted
from omlx_cache.arrays.mlxio import TOKEN_AXIS
from omlx_cache.integrations.batch import CachedBatchGenerator
from omlx_cache.pages.layout import layout_of

WINDOW = 8
PADDING = -1.0


def _update(batch: BatchRotatingKVCache, spans: list[tuple[int, int]]) -> None:
    """Feed each row its next (first token, count), the shorter ones padded on the right."""
    lengths = [count for _, count in spans]
    most = max(lengths)
    rows = []
    for first, count in spans:
        rows.append(mx.full((1, 1, most, 1), PADDING))
        # Each key tells its token.
        keys = mx.arange(first, first + count, dtype=mx.float32)
        rows[-1][:, :, :count] = keys.reshape(1, 1, count, 1)
    batch.prepare(lengths=lengths, right_padding=[most - count for count in lengths])
    keys = mx.concatenate(rows)
    batch.update_and_fetch(keys, keys)
    batch.finalize()


def test_no_padding_is_believed_of_a_row_whose_window_has_moved_on() -> None:
    batch = BatchRotatingKVCache.merge([RotatingKVCache(WINDOW), RotatingKVCache(WINDOW)])
    _update(batch, [(0, 20), (0, 20)])
    _update(batch, [(20, 20), (20, 5)])
    upstream = batch.extract(1)
    assert PADDING in np.array(upstream.keys), "mlx-lm counts padding now: `extracted` may go"
    (row,) = extracted([upstream])
    (leaf,) = layout_of([row]).leaves
    held = [token for span in leaf.adapter.held(row) for token in range(*span)]
    assert held == list(range(25 - WINDOW, 25))
    assert np.array(row.keys).ravel().tolist() == held


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    budgets = {"hot_bytes": "1MiB", "queue_bytes": "512KiB", "cold_bytes": "4MiB"}
    with BlockStore(settings(tmp_path, **budgets)) as store:
        store.flights.wait_seconds = 0
        yield store


@pytest.mark.nightly
def test_every_window_that_a_busy_batch_stores_in_little_room_is_the_uninterrupted_one(
    store: BlockStore,
) -> None:
    model = zoo.build("gemma3_text")
    model.set_dtype(mx.float32)
    cache = PrefixCache(model, store)
    chosen = random.Random(3)
    parts = [
        [random_tokens(n, 100 * level + k) for k in range(3)]
        for level, n in enumerate((150, 77, 64, 33))
    ]

    def prompt() -> list[int]:
        own = [token for part in parts[: chosen.randint(1, 4)] for token in chosen.choice(part)]
        return own + random_tokens(chosen.randint(1, 5), chosen.randint(0, 3))

    generator = BatchGenerator(
        model, prefill_step_size=32, prefill_batch_size=4, completion_batch_size=8
    )
    batch = CachedBatchGenerator(generator, cache)
    live: dict[int, list[int]] = {}
    for at in range(60):
        each = prompt()
        live[batch.submit(each, max_tokens=8, segments=[150, 227] if at % 2 else ())] = each
        while len(live) > 16 or (live and at == 59):
            for ended in [token.uid for token in batch.next() if token.finish_reason]:
                _assert_right(model, cache, live.pop(ended))


def _assert_right(model: Any, cache: PrefixCache, prompt: list[int]) -> None:
    """What is restored of a prompt is what a prefill of it alone holds."""
    with cache.session(prompt) as session:
        assert session.cached_tokens
        reference = make_prompt_cache(model)
        feed(model, reference, prompt[: session.cached_tokens])
        restored, wanted = _contents(session.prompt_cache), _contents(reference)
    for name in restored.keys() & wanted.keys():
        assert np.allclose(restored[name], wanted[name], atol=1e-3), (name, len(prompt))


def _contents(caches: list[Any]) -> dict[tuple[str, str, int], Any]:
    found = {}
    for leaf in layout_of(caches).leaves:
        held = [token for span in leaf.adapter.held(leaf.cache) for token in range(*span)]
        for field, array in leaf.adapter.arrays(leaf.cache).items():
            columns = np.moveaxis(np.array(array), TOKEN_AXIS, 0)
            found |= {(leaf.path, field, token): columns[i] for i, token in enumerate(held)}
    return found
