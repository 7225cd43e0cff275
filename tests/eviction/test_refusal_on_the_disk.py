"""The disk too keeps what was used a short while ago, from others and not from its own sequence."""

from pathlib import Path

import pytest
from eviction.patient import PATIENCE_SECONDS, PATIENT, patient

from kit.storage import HandClock, Story, commit, open_store
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.recency import SUPERSEDED_NS

KIB = 1024


def _cold(directory: Path, clock: HandClock) -> ColdTier:
    tier = ColdTier(directory, 400 * KIB, clock=clock, policy=patient)
    tier.open()
    return tier


def _fill(tier: ColdTier, story: Story, stamp: int) -> int:
    """Write pages of one use, root first, until one is refused; return how many there are."""
    for number in range(1, 60):
        if tier.write(story.page(number), stamp, story.document) != "written":
            return number - 1
    raise AssertionError("it never was full")


def test_a_page_of_another_use_is_refused_within_patience_and_taken_later(tmp_path: Path) -> None:
    clock, old, new = HandClock(), Story("old"), Story("new")
    tier = _cold(tmp_path, clock)
    count = _fill(tier, old, clock.now())
    clock.pass_by(PATIENCE_SECONDS - 1)
    assert tier.write(new.page(1), clock.now(), new.document) == "refused"
    assert tier.usage().pages == count
    clock.pass_by(2)
    assert tier.write(new.page(1), clock.now(), new.document) == "written"
    assert tier.info(old.id(count)) is None
    assert tier.info(old.id(1)) is not None
    tier.check_integrity()


def test_a_sequence_gives_up_its_own_end_for_its_root_however_young(tmp_path: Path) -> None:
    clock, story = HandClock(), Story("old")
    tier = _cold(tmp_path, clock)
    stamp = clock.now()
    for number in range(20, 60):
        if tier.write(story.page(number), stamp, story.document) != "written":
            break
    assert tier.write(story.page(1), stamp, story.document) == "written"


def test_what_was_superseded_makes_room_at_once(tmp_path: Path) -> None:
    clock, old, new = HandClock(), Story("old"), Story("new")
    tier = _cold(tmp_path, clock)
    count = _fill(tier, old, clock.now())
    tier.demote(old.ids(*range(count - 5, count + 1)), SUPERSEDED_NS)
    assert tier.write(new.page(1), clock.now(), new.document) == "written"


@pytest.mark.parametrize("policy", ["through", "back", "lazy"])
def test_a_flush_answers_true_though_the_disk_refused_and_a_later_use_gets_the_page_in(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx_cache.store.EVICTION_POLICIES", PATIENT)
    clock, old, new = HandClock(), Story("old"), Story("new")
    fields = {"cold_bytes": 400 * KIB, "write_policy": policy, "hot_bytes": 2048 * KIB}
    with open_store(tmp_path, clock=clock, **fields) as store:
        commit(store, old, *range(1, 41))
        assert store.flush(60)
        assert store.cold is not None
        assert store.cold.info(old.id(1)) is not None
        assert store.cold.info(old.id(40)) is None
        commit(store, new, 1, 2)
        assert store.flush(60)
        assert not any(store.cold.info(page) for page in new.ids(1, 2))
        assert all(store.hot.info(page) for page in new.ids(1, 2))
        clock.pass_by(PATIENCE_SECONDS + 1)
        store.touch(new.ids(1, 2))
        assert store.flush(60)
        assert all(store.cold.info(page) for page in new.ids(1, 2))
        store.cold.check_integrity()


def test_a_longer_turn_of_a_conversation_makes_room_among_its_own_pages_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omlx_cache.store.EVICTION_POLICIES", PATIENT)
    clock, old, talk = HandClock(), Story("old"), Story("talk")
    with open_store(tmp_path, clock=clock, cold_bytes=400 * KIB, hot_bytes=2048 * KIB) as store:
        commit(store, old, *range(1, 7))
        for last in range(4, 41, 4):
            clock.pass_by(1)
            store.touch(talk.ids(*range(1, last + 1)))
            commit(store, talk, *range(last - 3, last + 1))
            store.touch(talk.ids(*range(1, last + 1)))
            assert store.flush(60)
        assert store.cold is not None
        assert all(store.cold.info(page) for page in old.ids(*range(1, 7)))
        held = [n for n in range(1, 41) if store.cold.info(talk.id(n))]
        assert held == list(range(1, len(held) + 1))
        assert len(held) >= 4
