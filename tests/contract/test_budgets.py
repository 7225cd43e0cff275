"""Budgets are ceilings, also while a burst arrives, after a restart, and for all processes of a
directory together: memory as MLX counts it, the disk as `du` does, at every moment looked at."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from contract.arithmetic import DENSE, HYBRID, WINDOWED, Arithmetic, tokens_of
from contract.driving import BLOCK, Child, ask, disk_bytes, settings
from omlx_cache import BlockStore, PrefixCache

Open = Callable[..., BlockStore]
MIB = 1 << 20
COUNT = 8 * BLOCK


@pytest.mark.parametrize("kinds", [DENSE, HYBRID, WINDOWED], ids="-".join)
def test_the_disk_is_never_above_its_budget(
    kinds: tuple[str, ...], open_store: Open, directory: Path
) -> None:
    model, budget = Arithmetic(kinds), 2 * MIB
    most = 0
    for start in (0, 20):
        store = open_store(cold_bytes=budget, hot_bytes=MIB)
        cache = PrefixCache(model, store)
        for seed in range(start, start + 20):
            assert ask(model, cache, tokens_of(seed, COUNT)).wrong == ""
            most = max(most, disk_bytes(directory))
        store.flush(30)
        most = max(most, disk_bytes(directory))
        usage = store.stats().cold
        assert usage is not None
        assert usage.limit_bytes == budget
        assert usage.peak_bytes <= budget
        assert store.close()
        assert disk_bytes(directory) <= budget
    assert budget / 2 < most <= budget


def test_a_smaller_budget_after_a_restart_is_kept(open_store: Open, directory: Path) -> None:
    model = Arithmetic()
    for budget in (4 * MIB, MIB):
        store = open_store(cold_bytes=budget)
        cache = PrefixCache(model, store)
        for seed in range(15):
            ask(model, cache, tokens_of(seed, COUNT))
        store.flush(30)
        assert disk_bytes(directory) <= budget
        assert store.close()
    turns = [ask(model, PrefixCache(model, open_store()), tokens_of(s, COUNT)) for s in range(15)]
    assert not any(turn.wrong for turn in turns)


def test_memory_is_never_above_its_budget_and_is_really_freed(open_store: Open) -> None:
    model, budget = Arithmetic(), 2 * MIB
    mx.clear_cache()
    before = mx.get_active_memory()
    store = open_store(hot_bytes=budget, queue_bytes=MIB, cold_bytes="64MiB")
    cache = PrefixCache(model, store)
    for seed in range(40):
        ask(model, cache, tokens_of(seed, COUNT))
        usage = store.stats().hot
        assert usage.nbytes <= budget
        assert mx.get_active_memory() - before <= budget + 64 * 1024
    assert store.stats().hot.peak_bytes <= budget
    assert store.stats().hot.nbytes > budget // 2
    assert store.close()
    assert mx.get_active_memory() - before <= 64 * 1024


def test_a_page_pins_no_larger_cache(open_store: Open) -> None:
    model = Arithmetic()
    mx.clear_cache()
    before = mx.get_active_memory()
    store = open_store(hot_cache_only=True)
    cache = PrefixCache(model, store)
    with cache.session(tokens_of(1, BLOCK), max_new_tokens=20_000) as session:
        model.feed(session.prompt_cache, tokens_of(1, BLOCK), 0)
        session.commit()
    del session
    nbytes = store.stats().hot.nbytes
    assert nbytes == 2 * 2 * 2 * 32 * 2 * BLOCK
    assert mx.get_active_memory() - before <= nbytes + 16 * 1024


def test_deep_ends_leave_first_so_that_roots_are_restored(open_store: Open) -> None:
    model = Arithmetic()
    store = open_store(cold_bytes=2 * MIB, hot_bytes=0)
    cache = PrefixCache(model, store)
    whole = tokens_of(1, 80 * BLOCK)
    with cache.session(whole) as session:
        at = 0
        for chunk in session.prefill_chunks(step=BLOCK):
            model.feed(session.prompt_cache, chunk, at)
            at += len(chunk)
            store.flush(30)
        session.commit()
    store.flush(30)
    turn = ask(model, cache, whole, commit=False)
    assert turn.wrong == ""
    assert 20 * BLOCK <= turn.cached < 80 * BLOCK
    held = store.stats().cold
    assert held is not None
    assert turn.cached >= 0.8 * held.pages * BLOCK


def test_processes_share_one_budget(directory: Path, child: Callable[..., Child]) -> None:
    budget = 3 * MIB
    given: dict[str, Any] = {
        "cold_dir": str(directory),
        "cold_bytes": budget,
        "hot_bytes": MIB,
        "min_free_bytes": 0,
        "durability": "none",
        "socket": "off",
        "block_size": BLOCK,
    }
    with BlockStore(settings(directory, **given)) as store:
        model = Arithmetic()
        cache = PrefixCache(model, store)
        others = [child("-m", "contract.worker", json.dumps(given)) for _ in range(2)]
        for one in others:
            assert one.hear() == {"ready": True}
        most = 0
        for number, one in enumerate(others):
            one.tell({"do": "fill", "first": 100 * number, "last": 100 * number + 15, "count": 256})
        for seed in range(300, 315):
            assert ask(model, cache, tokens_of(seed, 256)).wrong == ""
            most = max(most, disk_bytes(directory, others))
        for number, one in enumerate(others):
            while "done" not in (told := one.hear()):
                assert told["wrong"] == ""
                most = max(most, disk_bytes(directory, others[number:]))
            assert one.end() == 0
        store.flush(30)
        assert budget / 2 < max(most, disk_bytes(directory)) <= budget
