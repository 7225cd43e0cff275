"""Whatever a store does while several machines and threads use it: right or a miss, and no leak."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.remote import MemoryEngine, MemoryStore
from kit.remote.asking import inquiry
from kit.storage import Story
from omlx_cache_storage import breaker
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.page import PageId
from omlx_cache_storage.remote.engine import RemoteError, RemoteOptions, Trouble
from omlx_cache_storage.remote.tier import RemoteTier

BLOCK = 16
BLOCKS = 24
STEPS = 150
DEADLINE = 120.0
TROUBLES: tuple[Trouble, ...] = ("refused", "timeout", "auth", "throttled", "lost", "full")


class _Storm:
    """Two machines on one store, and threads that do to them what comes to mind."""

    def __init__(self, seed: int, part_bytes: int | None, asks_together: int) -> None:
        self.seed = seed
        self.store = MemoryStore()
        self.engines = [
            MemoryEngine(self.store, part_bytes=part_bytes, asks_together=asks_together)
            for _ in range(2)
        ]
        options = RemoteOptions(
            "", "cpu", secret=b"a secret of a storm", lookup_seconds=0.02, read_seconds=0.05
        )
        self.tiers = [
            RemoteTier(engine, options, engine_name="", where="") for engine in self.engines
        ]
        self.stories = [Story(f"story {n}", nbytes=3000, blocks=BLOCKS + 1) for n in range(3)]
        self.came = 0

    def run(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        doings = (self._ask, self._ask, self._restore, self._restore, self._write, self._write)
        doings += (self._drop, self._damage, self._fail, self._hang)
        for _ in range(STEPS):
            tier = chance.choice(self.tiers)
            chance.choice(doings)(chance, tier, chance.choice(self.stories))

    def _ask(self, chance: random.Random, tier: RemoteTier, story: Story) -> None:
        blocks = chance.randint(1, BLOCKS)
        length = blocks * BLOCK + chance.randint(0, BLOCK - 1)
        others = {"state": 0} if chance.random() < 0.5 else {}
        question = inquiry(story, blocks, length=length, others=others)
        tier.ask(question, chance.choice((None, 0, 0.001)))

    def _restore(self, chance: random.Random, tier: RemoteTier, story: Story) -> None:
        pages = [story.id(n) for n in range(1, BLOCKS + 1)]
        if chance.random() < 0.3:
            chance.shuffle(pages)
        for page in pages[: chance.randint(1, BLOCKS)]:
            self._get(tier, story, page)

    def _get(self, tier: RemoteTier, story: Story, page: PageId) -> None:
        try:
            with tier.reading(page) as opened:
                payload = bytearray(opened.meta.nbytes)
                opened.read_into([payload])
        except PageError:
            return
        number = opened.meta.position // BLOCK
        assert opened.meta.id == page
        assert payload == story.page(number).payload
        self.came += 1

    def _write(self, chance: random.Random, tier: RemoteTier, story: Story) -> None:
        for number in range(1, chance.randint(2, BLOCKS)):
            tail = chance.choice((0, 0, 0, 5))
            try:
                tier.store.write(story.page(number, tail=tail))
            except RemoteError:
                return

    def _drop(self, chance: random.Random, tier: RemoteTier, story: Story) -> None:
        page = story.id(chance.randint(1, BLOCKS))
        self.store.evict(page.key.hex())

    def _damage(self, chance: random.Random, tier: RemoteTier, story: Story) -> None:
        with self.store.lock:
            if not self.store.values:
                return
            name = chance.choice(list(self.store.values))
            parts = self.store.values[name]
            at = chance.randrange(len(parts))
            raw = bytearray(parts[at])
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
            cut = raw[: chance.randint(1, len(raw))] if chance.random() < 0.3 else raw
            self.store.values[name] = [*parts[:at], bytes(cut), *parts[at + 1 :]]

    def _fail(self, chance: random.Random, tier: RemoteTier, story: Story) -> None:
        engine = chance.choice(self.engines)
        operation = chance.choice(("look", "read", "write", "add", "*"))
        engine.fail[operation] = chance.choice(TROUBLES)
        for _ in range(2):
            self._restore(chance, tier, story)
        engine.fail.pop(operation, None)

    def _hang(self, chance: random.Random, tier: RemoteTier, story: Story) -> None:
        engine = chance.choice(self.engines)
        with engine.hanging(*chance.sample(("look", "read", "ping"), 2)):
            self._ask(chance, tier, story)
            self._restore(chance, tier, story)


@pytest.mark.parametrize(
    ("seed", "part_bytes", "asks_together"), [(1, 8 << 20, 1 << 20), (2, 700, 8), (3, None, 8)]
)
def test_a_storm_leaves_right_pages_and_nothing_behind(
    seed: int, part_bytes: int | None, asks_together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "FIRST_SECONDS", 0.002)
    monkeypatch.setattr(breaker, "LONGEST_SECONDS", 0.002)
    storm = _Storm(seed, part_bytes, asks_together)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(storm.run, number) for number in range(4)]
        for one in running:
            one.result(DEADLINE)
    for tier in storm.tiers:
        assert tier.close(DEADLINE)
        assert tier.usage().held_bytes == 0
    assert storm.came > 0
    assert not [t for t in threading.enumerate() if t.name.startswith("omlx-cache-remote")]
