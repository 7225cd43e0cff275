"""Pins that lie in a directory hold for all of its processes, within half of its bytes."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.storage import HandClock, Story, open_cold
from kit.units import KIB, SECOND
from omlx_cache_daemon.changing import ChangeRefused, change_pins
from omlx_cache_storage.cold.small_files import PINS, encode_pins, parse_pins, pins_bytes, read_pins
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS
from omlx_cache_storage.format.names import PINS_FILE
from omlx_cache_storage.pins import PinRecord

PAGE = 64 * KIB
COLD_PAGE = PAGE + 24 * KIB
SLACK = PAGE + 150 * KIB


@pytest.fixture
def story() -> Story:
    return Story(nbytes=PAGE)


def _open(directory: Path, pages: int = 12, clock: HandClock | None = None) -> ColdTier:
    return open_cold(directory, pages * COLD_PAGE + SLACK, clock=clock or HandClock())


def _write(tier: ColdTier, story: Story, *numbers: int) -> list[str]:
    clock = tier._index.clock
    return [tier.write(page, clock.now(), story.document) for page in story.pages(*numbers)]


def _here(tier: ColdTier, story: Story, most: int = 60) -> list[int]:
    return [number for number in range(1, most) if story.id(number) in tier]


def _pin(directory: Path, *pins: PinRecord) -> None:
    change_pins(directory, lambda before: (*before, *pins))


def _namespace(story: Story, until_ns: int | None = None) -> PinRecord:
    return PinRecord("namespace", story.namespace.hex(), 1, until_ns)


def test_what_one_process_pins_no_other_evicts_and_no_restart_forgets(
    tmp_path: Path, story: Story
) -> None:
    other = Story("other", nbytes=PAGE)
    one, two = _open(tmp_path), _open(tmp_path)
    _write(one, story, 1, 2, 3, 4)
    _pin(tmp_path, story.pin(1, 2))
    assert set(_write(two, other, *range(1, 60))) == {"written"}
    assert _here(two, story) == [1, 2]
    one.settle()
    assert _here(one, story) == [1, 2]
    for tier in (one, two):
        tier.check_integrity()
        tier.close()
    again = _open(tmp_path)
    assert set(_write(again, Story("third", nbytes=PAGE), *range(1, 60))) == {"written"}
    assert _here(again, story) == [1, 2]
    again.check_integrity()


@pytest.mark.parametrize(("kind", "name"), [("model", "llama"), ("salt", "text:77")])
def test_a_model_and_a_salt_are_found_by_what_documents_say(
    tmp_path: Path, story: Story, kind: str, name: str
) -> None:
    _pin(tmp_path, PinRecord(kind, name, 1))
    one, two = _open(tmp_path), _open(tmp_path)
    document = {"label": "llama", "salt": "text:77"}
    for page in story.pages(1, 2):
        one.write(page, one._index.clock.now(), document)
    _write(two, Story("other", nbytes=PAGE), *range(1, 40))
    assert _here(two, story) == [1, 2]


def test_a_pin_that_has_ended_holds_nothing_and_leaves_the_file(
    tmp_path: Path, story: Story
) -> None:
    clock, other = HandClock(), Story("other", nbytes=PAGE)
    tier = _open(tmp_path, clock=clock)
    _write(tier, story, 1, 2)
    _pin(tmp_path, _namespace(story, clock.now() + 60 * SECOND))
    _write(tier, other, *range(1, 30))
    assert _here(tier, story) == [1, 2]
    clock.pass_by(61)
    _write(tier, other, *range(30, 60))
    assert _here(tier, story) == []
    assert read_pins(tmp_path) == ()


def test_all_pins_together_take_half_of_the_budget_root_first(tmp_path: Path, story: Story) -> None:
    other, tier = Story("other", nbytes=PAGE), _open(tmp_path)
    _write(tier, story, *range(1, 12))
    _pin(tmp_path, _namespace(story))
    assert set(_write(tier, other, *range(1, 40))) == {"written"}
    kept = _here(tier, story)
    assert 4 <= len(kept) <= 8
    assert kept == [*range(1, len(kept) + 1)]
    tier.check_integrity()


def test_a_newer_file_is_gone_by_and_not_replaced(tmp_path: Path, story: Story) -> None:
    tier = _open(tmp_path)
    _write(tier, story, 1)
    _pin(tmp_path, _namespace(story))
    said = {**json.loads((tmp_path / PINS_FILE).read_text()), "version": 9}
    said["pins"].append({"kind": "star sign", "name": "ram"})
    (tmp_path / PINS_FILE).write_text(json.dumps(said))
    assert read_pins(tmp_path) == (_namespace(story),)
    assert not PINS.is_readable(tmp_path)
    with pytest.raises(ChangeRefused, match="newer version"):
        change_pins(tmp_path, lambda pins: ())
    assert json.loads((tmp_path / PINS_FILE).read_text()) == said


_PINS = st.lists(
    st.builds(
        PinRecord,
        st.sampled_from(["model", "salt"]),
        st.text(max_size=5),
        st.integers(0, 2**62),
        st.none() | st.integers(0, 2**62),
    ),
    max_size=5,
).map(tuple)


@given(_PINS)
def test_what_is_written_down_is_read_back(pins: tuple[PinRecord, ...]) -> None:
    assert parse_pins(json.loads(encode_pins(pins))) == pins
    assert pins_bytes(pins) >= 0


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "pin", "unpin", "touch", "demote", "drop", "restart"]),
        st.integers(0, 1),
        st.integers(1, 6),
    ),
    max_size=25,
)


@given(steps=_STEPS)
def test_index_and_pins_agree_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("pins")
    stories = [Story(name, nbytes=4 * KIB) for name in ("a", "b")]
    tiers = [ColdTier(directory, 600 * KIB, clock=HandClock()) for _ in stories]
    for tier in tiers:
        tier.open()
    try:
        for what, which, number in steps:
            tier, story = tiers[which], stories[number % 2]
            if what == "write":
                _write(tier, story, *range(1, number + 1))
            elif what == "pin":
                pin = _namespace(story) if which else story.pin(*range(1, number + 1))
                change_pins(directory, lambda pins, pin=pin: (*pins, pin))
            elif what == "unpin":
                change_pins(directory, lambda pins: pins[1:])
            elif what == "touch":
                tier.touch(story.ids(number))
            elif what == "demote":
                tier.demote(story.ids(number), SUPERSEDED_NS)
            elif what == "drop":
                tier.discard(story.ids(number))
            else:
                tier.close()
                tiers[which] = tier = ColdTier(directory, 600 * KIB, clock=HandClock())
                tier.open()
            tier.settle()
            tier.check_integrity()
            assert tier._index.contents.pinned_bytes * 2 <= tier.limit_bytes
            wanted = {
                page
                for story in stories
                for page in story.ids(*range(1, 8))
                if page in tier and tier.pins.until(story.namespace, page.key)
            }
            assert {file.id for file in tier._index.contents.records() if file.pinned_ns} == wanted
    finally:
        for tier in tiers:
            tier.close()


def test_a_namespace_without_pages_is_asked_for_no_more(tmp_path: Path, story: Story) -> None:
    tier, other = _open(tmp_path), Story("other", nbytes=PAGE)
    _write(tier, other, 1)
    tier.clear(other.namespace)
    _write(tier, story, 1)
    for one in (tier, _open(tmp_path)):
        assert set(+one._index.namespaces) == {story.namespace}
