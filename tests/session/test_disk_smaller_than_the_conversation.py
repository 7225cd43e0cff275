"""A tier that has no room for all of it keeps what can be restored: never a deep end without its
root, nor a prefix without a window or a state to go on from.

What the writer and a conversation do to a full disk in between each other is not left to the
machine: the writer is done with each chunk before the next one, or begins at a turn's end.
"""

from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

from kit import zoo
from kit.drive import random_tokens, settings
from kit.examples import some
from kit.storage import FaultyDisk, HandClock
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage.keys import as_tokens
from omlx_cache_storage.page import PageId

BLOCK, LENGTH = 32, 2560
HEADS, DIM = 4, 128
ANSWER = 4

LAYERS: dict[str, Callable[[], list[Any]]] = {
    "dense": lambda: [KVCache()],
    "windowed": lambda: [KVCache(), *(RotatingKVCache(96) for _ in range(2))],
    "hybrid": lambda: [KVCache(), ArraysCache(1)],
}
POLICIES = ["through", "lazy"]
EVERY_RUN = {
    ("dense", "lazy"), ("windowed", "through"), ("windowed", "lazy"), ("hybrid", "through"),
}  # fmt: skip
"""Every kind of layers and every policy; the nightly run has each with each."""


def layers_and_policies() -> list[Any]:
    return [
        pytest.param(*case, marks=[] if case in EVERY_RUN else [pytest.mark.nightly])
        for case in product(LAYERS, POLICIES)
    ]


def fill(prompt_cache: list[Any], count: int) -> None:
    """Feed caches as a model would that computes nothing: pages have the sizes of a small one."""
    kv = mx.zeros((1, HEADS, count, DIM), dtype=mx.bfloat16)
    for each in prompt_cache:
        if isinstance(each, ArraysCache):
            each[0] = mx.zeros((1, HEADS, DIM, DIM))
        else:
            mx.eval(each.update_and_fetch(kv, kv))


class Share(NamedTuple):
    """What a tier holds: the bytes of pages that some restore uses, as a share of all, and how
    many tokens of each conversation are restored."""

    useful: float
    restored: list[int]


class Talks:
    """Conversations that grow in turns, in stores over one directory. Of a turn nothing is on the
    disk before its end with `behind`, and without it each chunk before the next one."""

    def __init__(
        self, layers: str, directory: Path, count: int = 1, *, behind: bool = False, **fields: Any
    ) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self._disk, self._clock, self._behind = FaultyDisk(), HandClock(), behind
        self._model = model()
        self._layers = LAYERS[layers]
        self._directory = directory
        self._fields = {"block_size": BLOCK, "snapshot_stride": 2 * BLOCK, **fields}

    def open(self) -> BlockStore:
        chosen = settings(self._directory, **self._fields)
        return BlockStore(chosen, filesystem=self._disk, clock=self._clock)

    def cache(self, store: BlockStore) -> PrefixCache:
        return PrefixCache(self._model, store, make_cache=self._layers)

    def ask(self, store: BlockStore, which: int, count: int) -> None:
        tokens = self.tokens[which]
        tokens += random_tokens(count - ANSWER, 1000 * which + len(tokens))
        self._clock.pass_by(1)
        if self._behind:
            self._disk.gate.clear()
        with self.cache(store).session(tokens) as session:
            for chunk in session.prefill_chunks(4 * BLOCK):
                fill(session.prompt_cache, len(chunk))
                self._written(store)
            for token in range(ANSWER):
                fill(session.prompt_cache, 1)
                session.append(token)
                self._written(store)
            session.commit()
        self._disk.gate.set()
        self._written(store)
        tokens += range(ANSWER)

    def _written(self, store: BlockStore) -> None:
        """Wait until the writer has nothing to do, unless it is to be behind."""
        if self._disk.gate.is_set():
            while store.wait_for_writer(60):
                pass

    def share(self, store: BlockStore, held: Iterable[tuple[PageId, int]]) -> Share:
        useful: set[bytes] = set()
        restored = []
        scope = self.cache(store).scope()
        for tokens in self.tokens:
            chain = scope.chain(as_tokens([*tokens, 1]))
            position = scope.find(chain, len(tokens)).position
            useful |= {chain.key(end) for end in range(1, position + 1)}
            restored.append(position)
        sizes = {True: 0, False: 1}
        for page, nbytes in held:
            sizes[page.key in useful] += nbytes
        return Share(sizes[True] / sum(sizes.values()), restored)

    def share_of_disk(self) -> Share:
        """What a restart finds."""
        with self.open() as store:
            return self.share(store, [(e.page, e.info.nbytes) for e in store.cold.listing()])


@cache
def model() -> Any:
    return zoo.build("llama")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    """What the disk, or memory, takes for one conversation of full length."""

    @cache
    def of(layers: str, *, hot: bool = False) -> int:
        directory = tmp_path_factory.mktemp("whole")
        talks = Talks(layers, directory, hot_cache_only=hot, cold_bytes="64MiB")
        with talks.open() as store:
            talks.ask(store, 0, LENGTH)
            assert store.flush(60)
            stats = store.stats()
            return stats.hot.nbytes if stats.cold is None else stats.cold.nbytes

    return of


@pytest.mark.parametrize(("layers", "policy"), layers_and_policies())
@pytest.mark.parametrize("hot", some(["256MiB", "2MiB"], "2MiB"))
def test_of_a_prompt_of_three_disks_four_fifths_of_a_disk_are_restorable(
    tmp_path: Path, whole: Callable[..., int], layers: str, policy: str, hot: str
) -> None:
    limit = whole(layers) // 3
    budgets = {"cold_bytes": limit, "hot_bytes": hot, "queue_bytes": "1MiB"}
    talks = Talks(layers, tmp_path / "cold", write_policy=policy, **budgets)
    with talks.open() as store:
        talks.ask(store, 0, LENGTH)
        assert store.flush(60)
    share = talks.share_of_disk()
    assert share.useful >= 0.8
    assert share.restored[0] >= 0.25 * LENGTH


@pytest.mark.parametrize(("layers", "policy"), layers_and_policies())
@pytest.mark.parametrize("restarts", some([False, True], True))
@pytest.mark.parametrize("behind", some([False, True], True), ids=["in step", "behind"])
def test_of_a_conversation_that_outgrows_the_disk_four_fifths_of_the_disk_are_restorable(
    tmp_path: Path,
    whole: Callable[..., int],
    layers: str,
    policy: str,
    restarts: bool,
    behind: bool,
) -> None:
    limit = whole(layers) // 3
    talks = Talks(layers, tmp_path / "cold", behind=behind, write_policy=policy, cold_bytes=limit)
    turns = 8
    store = talks.open()
    for _ in range(turns):
        talks.ask(store, 0, LENGTH // turns)
        # A person takes longer to answer than the writer does.
        assert store.flush(60)
        if restarts:
            store.close()
            store = talks.open()
    store.close()
    share = talks.share_of_disk()
    assert share.useful >= 0.8
    assert share.restored[0] >= 0.25 * LENGTH
