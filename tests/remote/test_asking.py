"""What a store has of a chain is found in at most three sequential phases, whatever it has."""

from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kit.examples import examples
from kit.remote import MemoryEngine
from kit.storage import Story
from omlx_cache_storage.events import SILENT
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, PageId, Tail
from omlx_cache_storage.remote.engine import RemoteOptions
from omlx_cache_storage.remote.envelope import TAILS, RemoteKeys, RemoteNames, TailMember, seal
from omlx_cache_storage.remote.knowledge import ABSENT_SECONDS
from omlx_cache_storage.remote.lookups import Asking, Inquiry
from omlx_cache_storage.remote.store import RemoteStore

BLOCK = 16
OPTIONS = RemoteOptions("redis://somewhere", "cpu", prefix="lab")
NAMES = RemoteNames("lab", "cpu")
KEYS = RemoteKeys()


class _Asker:
    """A machine that asks one store about one story."""

    def __init__(self, story: Story, engine: MemoryEngine) -> None:
        self.story = story
        self.engine = engine
        self.now = 100.0
        self.store = RemoteStore(engine, OPTIONS, SILENT, lambda: self.now)
        self.knowledge = self.store.known

    def put(self, page: Page) -> None:
        namespace, meta = page.meta.namespace, page.meta
        pieces = seal(NAMES.bound(namespace, meta.id), page, KEYS)
        self.engine.write(NAMES.page(namespace, meta.id), [pieces], replace=True)
        if meta.tail:
            wire_bytes = sum(memoryview(piece).nbytes for piece in pieces)
            member = TailMember(
                meta.key, meta.position, meta.held, meta.nbytes, wire_bytes, meta.group
            )
            self.engine.add(_tails(meta.parent), member.text())

    def put_all(self, blocks: Collection[int], group: str = "paged") -> None:
        for block in blocks:
            self.put(self.story.page(block, group=group))

    def ask(
        self,
        blocks: int,
        *,
        known: int = 0,
        paged: str | None = "paged",
        others: Mapping[str, int] | None = None,
        length: int = 0,
    ) -> Asking:
        chain = self.story.chain
        asking = Asking(
            self.store,
            Inquiry(
                self.story.namespace,
                BLOCK,
                [self.story.namespace, *(chain.key(n * BLOCK) for n in range(1, blocks + 1))],
                paged,
                known,
                others or {},
                length or blocks * BLOCK,
                chain.key,
            ),
        )
        before = self.engine.phases
        asking.run()
        assert self.engine.phases - before == asking.phases <= 3
        return asking

    def deepest(self, blocks: int, known: int = 0) -> int:
        """Return how far a look-up gets."""
        found = known
        for n in range(known + 1, blocks + 1):
            if self.knowledge.seen(self.story.id(n)) is None:
                break
            found = n
        return found

    def knows(self, page: PageId) -> bool:
        return self.knowledge.seen(page) is not None


STORY = Story(nbytes=16, blocks=600)


def _tails(parent: BlockKey) -> str:
    return NAMES.page(STORY.namespace, PageId(parent, TAILS))


def _asker(blocks: Collection[int] = (), together: int = 1 << 20, story: Story = STORY) -> _Asker:
    """Return one whose store has these blocks, and answers so many names at once."""
    asker = _Asker(story, MemoryEngine(asks_together=together))
    asker.put_all(blocks)
    return asker


@given(
    blocks=st.integers(1, 300),
    there=st.integers(0, 300),
    known=st.integers(0, 300),
    together=st.integers(17, 64),
)
@hypothesis_settings(max_examples=examples(60))
def test_a_few_names_at_once_find_where_a_chain_ends(
    blocks: int, there: int, known: int, together: int
) -> None:
    known = min(known, blocks)
    asker = _asker(range(1, there + 1), together)
    asking = asker.ask(blocks, known=known)
    assert asker.deepest(blocks, known) == max(known, min(there, blocks))
    assert asking.asked <= 3 * together + 3


@given(
    blocks=st.integers(1, 200),
    there=st.sets(st.integers(1, 200), max_size=30),
    together=st.integers(1, 20),
)
@hypothesis_settings(max_examples=examples(60))
def test_whatever_is_there_no_more_than_three_phases_follow_each_other(
    blocks: int, there: set[int], together: int
) -> None:
    asker = _asker(there, together)
    asking = asker.ask(blocks, others={"window16keep0": 1, "state": 0})
    assert asking.phases <= 3
    deepest = asker.deepest(blocks)
    # It may be wrong about what lies before, never about the deepest.
    assert deepest == 0 or deepest in there or max(there) > deepest


@pytest.mark.parametrize("together", [1 << 20, 24])
def test_windows_and_states_are_asked_for_up_to_where_the_blocks_end(together: int) -> None:
    asker = _asker(range(1, 31), together)
    asker.put_all([8, 16, 24], "state")
    asker.put_all([29, 30], "window32keep0")
    asker.ask(40, others={"state": 0, "window32keep0": 2})
    assert asker.knows(STORY.id(24, group="state"))
    assert asker.knows(STORY.id(29, group="window32keep0"))
    assert asker.knows(STORY.id(30, group="window32keep0"))
    assert not asker.knows(STORY.id(30, group="state"))


@pytest.mark.parametrize("together", [1 << 20, 5])
def test_a_prompts_own_tail_is_found_and_no_other_sequences(together: int) -> None:
    asker = _asker(range(1, 4), together)
    other = Story("other", nbytes=16)
    mine = STORY.page(4, tail=5)
    asker.put(mine)
    # One of the same parent, of another sequence: it ends elsewhere, or at the same place.
    foreign = TailMember(other.id(4, tail=6).key, 4 * BLOCK - 6, 10, 16, 999, "paged")
    asker.engine.add(_tails(mine.meta.parent), foreign.text())
    asker.ask(3, length=4 * BLOCK - 5)
    assert asker.knows(mine.meta.id)
    assert Tail(mine.meta.position, "paged") in asker.knowledge.tails_of([mine.meta.parent])
    assert not asker.knows(PageId(STORY.chain.key(4 * BLOCK - 6), "paged"))


def test_what_is_known_is_not_asked_for_again() -> None:
    asker = _asker(range(1, 6))
    assert asker.ask(8).news
    asker.engine.names.clear()
    again = asker.ask(8, known=5)
    assert not again.news
    # Who looked before that was found is told of it all the same.
    assert asker.ask(8, known=2).news
    assert asker.engine.names == []
    assert again.phases == 0


def test_a_tail_that_others_uploaded_is_found_a_second_later_where_one_was_known() -> None:
    asker = _asker([1, 2])
    asker.put(STORY.page(3, tail=9))
    asker.ask(2, length=3 * BLOCK - 9)
    asker.put(STORY.page(3, tail=2))
    asker.now += 1.5
    asker.ask(2, length=3 * BLOCK - 2)
    assert asker.knows(STORY.id(3, tail=2))
    positions = {tail.position for tail in asker.knowledge.tails_of([STORY.id(2).key])}
    assert 3 * BLOCK - 2 in positions


def test_a_value_of_a_stranger_is_absent_and_counted() -> None:
    asker = _asker([1, 2, 3])
    name = NAMES.page(STORY.namespace, STORY.id(2))
    asker.engine.store.change(name, lambda raw: raw[:40] + b"\xff" + raw[41:])
    asker.ask(3)
    assert asker.deepest(3) == 1
    assert asker.store.tally.usage()["bad_pages"] == 1
    assert asker.knowledge.why_absent(STORY.ids(2)) == {STORY.id(2): "remote_foreign"}


def test_a_block_that_was_lost_is_not_assumed_again_because_deeper_ones_are_there() -> None:
    asker = _asker(range(1, 301), 17)
    asker.ask(300)
    lost = next(n for n in range(2, 300) if asker.knowledge.seen(STORY.id(n)).wire_bytes == 0)
    asker.engine.store.evict(STORY.id(lost).key.hex())
    asker.knowledge.note_absent([STORY.id(lost)], "remote_lost")
    asker.now += ABSENT_SECONDS + 1
    asker.ask(300)
    assert asker.deepest(300) == lost - 1
    assert asker.knowledge.why_absent([STORY.id(lost)]) == {STORY.id(lost): "remote_lost"}
