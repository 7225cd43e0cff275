"""What a replay of a store's own trace leaves in the tiers is what the sessions left there."""

import random
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from kit import zoo
from kit.drive import settings
from kit.examples import some
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.simulate.replay import Replay
from omlx_cache.simulate.simulator import START_NS
from omlx_cache.simulate.tiers import (
    DirectWriter,
    SimulatedPages,
    VirtualClock,
    VirtualCold,
    room_for,
)
from omlx_cache.simulate.traces import read_traces, workload
from omlx_cache_storage.hot_page import WRITE_POLICIES
from omlx_cache_storage.keys import KeyChain, as_tokens
from omlx_cache_storage.page import PageId
from omlx_cache_storage.tiers import Tiers

BLOCK, HEADS, DIM = 32, 4, 1024
STEP = 64
TOKEN_BYTES = 2 * HEADS * DIM * 2
PAGE_BYTES = BLOCK * TOKEN_BYTES


class _Talks:
    """Conversations of whole blocks, which grow and branch, through sessions of a store."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        start = self._tokens(2)
        self._talks = [list(start) for _ in range(4)]
        self.sequences: list[list[int]] = []

    def _tokens(self, blocks: int) -> list[int]:
        return [self._draw.randrange(200) for _ in range(blocks * BLOCK)]

    def serve(self, cache: PrefixCache, requests: int) -> None:
        for _ in range(requests):
            talk = self._draw.choice(self._talks)
            if self._draw.random() < 0.2:
                del talk[self._draw.randrange(1, len(talk) // BLOCK + 1) * BLOCK :]
            talk += self._tokens(self._draw.randint(0, 6) or 1)
            answer = self._tokens(self._draw.randint(0, 1))
            with cache.session(list(talk)) as session:
                for chunk in session.prefill_chunks(step=STEP):
                    _fill(session.prompt_cache, len(chunk))
                for token in answer:
                    _fill(session.prompt_cache, 1)
                    session.append(token)
                session.commit(ended=self._draw.choice(["turn", "tool_call", None]))
            talk += answer
            self.sequences.append(list(talk))


class _OpeningWriter(DirectWriter):
    """One for a store, which waits until its writer has opened the directory."""

    def start(self) -> None:
        self._opening()
        self.opened.set()


def _fill(prompt_cache: list[Any], count: int) -> None:
    kv = mx.zeros((1, HEADS, count, DIM), dtype=mx.bfloat16)
    for one in prompt_cache:
        mx.eval(one.update_and_fetch(kv, kv))


@pytest.mark.parametrize("seed", some(range(3), 0))
@pytest.mark.parametrize(
    ("hot", "cold", "written"),
    some(
        [
            (9, 0, "through"),
            (24, 0, "through"),
            (9, 30, "through"),
            (9, 30, "lazy"),
            (24, 200, "lazy"),
        ],
        (24, 0, "through"),
        (9, 30, "through"),
    ),
)
def test_the_tiers_hold_the_same_pages_after_the_same_requests(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    hot: int,
    cold: int,
    written: str,
) -> None:
    # Else what a session finds would depend on how far the disk is.
    monkeypatch.setitem(Tiers.__init__.__kwdefaults__, "writer", _OpeningWriter)
    talks = _Talks(seed)
    fields = {"hot_bytes": hot * PAGE_BYTES, "queue_bytes": hot * PAGE_BYTES, "block_size": BLOCK}
    trace = tmp_path / "trace"
    budget = {"hot_cache_only": True} if not cold else {"cold_bytes": _files(cold)}
    with BlockStore(
        settings(
            tmp_path / "cold",
            **{**fields, **budget, "write_policy": written, "trace": trace, "worth_reading": "off"},
        )
    ) as store:
        model = zoo.build("llama")
        cache = PrefixCache(model, store, model_id="m", make_cache=lambda: [KVCache()])
        talks.serve(cache, 40)
        assert store.trace is not None
        store.trace.close(30)
        restored = store.stats().requests.restored_tokens
        traced = workload(read_traces([trace]), agents=1)
        assert [len(r.pages) for r in traced.requests] == [
            len(tokens) // BLOCK for tokens in talks.sequences
        ]
        assert traced.bytes_per_token == TOKEN_BYTES
        assert {request.ended for request in traced.requests} == {"turn", "tool_call", ""}
        real = _held(store, cache, talks, [r.pages for r in traced.requests])
    clock = VirtualClock(START_NS)
    tiers = Tiers(
        hot_bytes=hot * PAGE_BYTES,
        queue_bytes=hot * PAGE_BYTES,
        policy=WRITE_POLICIES[written],
        clock=clock,
        cold=VirtualCold(room_for(cold, PAGE_BYTES), clock=clock) if cold else None,
        documents=lambda namespace: {},
        writer=DirectWriter,
    )
    pages = SimulatedPages(traced, PAGE_BYTES)
    replay = Replay(tiers, traced, pages, step=STEP)
    served = 0
    for request in traced.requests:
        clock.set(START_NS + int(request.at * 1e9))
        served += replay.serve(request).tokens
    assert served == restored
    simulated = {
        number: _where(tiers, page) for number, page in enumerate(pages.ids) if tiers.find(page)
    }
    assert simulated == real
    tiers.hot.check_integrity()


def _files(pages: int) -> int:
    """The budget for so many pages and half a one, which directories take some of."""
    return room_for(pages, PAGE_BYTES) + PAGE_BYTES // 2


def _held(
    store: BlockStore, cache: PrefixCache, talks: _Talks, numbered: list[list[int]]
) -> dict[int, str]:
    held = {}
    namespaces = {held.namespace for held in store.hot.entries()}
    (namespace,) = namespaces
    for tokens, numbers in zip(talks.sequences, numbered, strict=True):
        chain = KeyChain(namespace, as_tokens(tokens), BLOCK)
        for at, number in enumerate(numbers):
            page = PageId(chain.key((at + 1) * BLOCK), "paged")
            if store.find(page):
                held[number] = _where(store, page)
    return held


def _where(tiers: Tiers, page: PageId) -> str:
    hot = tiers.hot.info(page) is not None
    cold = tiers.cold is not None and tiers.cold.info(page) is not None
    return f"{'hot' if hot else ''}{'cold' if cold else ''}"
