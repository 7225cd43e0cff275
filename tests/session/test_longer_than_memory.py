"""Conversations of ten times the memory: restored whole after every restart, written once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from kit import zoo
from kit.drive import Turn, decode, feed, prefill, random_tokens, same, settings
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage.cold.catalog import scan
from omlx_cache_storage.cold.reader import read_header

TURNS = 20
ASKED = 70
ANSWERED = 20
STEP = 64
LENGTH = TURNS * (ASKED + ANSWERED)

FAMILIES = ["llama", "gemma3_text", "qwen3_next"]
"""Dense, windowed and hybrid."""


def mixed() -> list[Any]:
    """Every family with every policy, and without a hot tier; every run takes one of them."""
    every_run = {("qwen3_next", "through", 0)}
    budgets = [("through", 10), ("lazy", 10), ("through", 0)]
    return [
        pytest.param(*case, marks=[] if case in every_run else [pytest.mark.nightly])
        for case in ((family, *budget) for family in FAMILIES for budget in budgets)
    ]


def bytes_of(model: Any, tokens: int) -> int:
    """What all pages of a sequence of so many tokens take."""
    with BlockStore(settings(Path("unused"), hot_cache_only=True)) as store:
        with PrefixCache(model, store).session(random_tokens(tokens, 0)) as session:
            prefill(model, session, 512)
            session.commit()
        return store.stats().hot.nbytes


class Conversation:
    """One that grows by a question and an answer each turn, beside a live cache that never stops.

    A store is opened for each turn, and closed after it: the next one finds the disk only.
    """

    def __init__(self, model: Any, open_store: Callable[[], BlockStore]) -> None:
        self.model = model
        self.tokens: list[int] = []
        self.written_bytes = 0
        self._open_store = open_store
        self._live = make_prompt_cache(model)

    def turn(self, number: int) -> Turn:
        prompt = self.tokens + random_tokens(ASKED, 1000 + number)
        with self._open_store() as store:
            turn = self._ask(store, prompt)
            stats = store.stats()
            assert stats.hot.peak_bytes <= stats.hot.limit_bytes
            assert store.flush(30)
            written = store.stats().writer
            self.written_bytes += written.written_bytes
        self.tokens = prompt + turn.answer
        return turn

    def _ask(self, store: BlockStore, prompt: list[int]) -> Turn:
        with PrefixCache(self.model, store).session(prompt) as session:
            turn = prefill(self.model, session, STEP)
            decode(self.model, session, turn, ANSWERED)
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            session.commit()
            granted = store.hot.limit_bytes
            assert mx.get_peak_memory() - before <= granted + 256 * 1024
        return turn

    def matches(self, turn: Turn) -> bool:
        """Whether a turn that restored all that was there before has the bits of the live cache."""
        return same(turn.logits, [feed(self.model, self._live, step) for step in turn.steps])


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "cold"


def payload_bytes(disk: Path) -> int:
    return sum(read_header(entry.path).meta.nbytes for entry in scan(disk))


@pytest.mark.parametrize(("family", "policy", "share"), mixed())
def test_a_conversation_of_ten_times_the_memory_is_restored_whole_after_every_restart(
    family: str, disk: Path, policy: str, share: int
) -> None:
    model = zoo.build(family)
    whole = bytes_of(model, LENGTH)
    budget = {"hot_bytes": whole // share if share else 0, "queue_bytes": whole // 10}

    def open_store() -> BlockStore:
        return BlockStore(settings(disk, write_policy=policy, **budget))

    conversation = Conversation(model, open_store)
    for number in range(TURNS):
        before = len(conversation.tokens)
        turn = conversation.turn(number)
        assert turn.cached == before, f"turn {number}"
        assert conversation.matches(turn), f"turn {number}"
    assert conversation.written_bytes <= 1.03 * payload_bytes(disk)
