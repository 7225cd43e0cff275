"""The disk too keeps what was used a short while ago, from others and not from its own sequence."""

from pathlib import Path

from eviction.patient import PATIENCE_SECONDS, patient

from kit.storage import HandClock, Story, open_cold
from kit.units import KIB
from omlx_cache_storage.cold.tier import ColdTier


def _cold(directory: Path, clock: HandClock) -> ColdTier:
    return open_cold(directory, 400 * KIB, clock=clock, policy=patient)


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
