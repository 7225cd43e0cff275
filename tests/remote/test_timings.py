"""What look-ups and pages of a remote store took is counted: those that came, and no others."""

from collections.abc import Iterator

import pytest

from kit.remote import MemoryEngine, MemoryStore
from kit.storage import Story
from omlx_cache_storage.errors import CorruptPage
from omlx_cache_storage.measures import Histogram
from omlx_cache_storage.remote.engine import Trouble
from omlx_cache_storage.remote.lookups import Inquiry
from omlx_cache_storage.remote.options import RemoteOptions
from omlx_cache_storage.remote.tier import RemoteTier

STORY = Story(blocks=8)
DEADLINE = 60.0
LOOKUPS, PAGES = "remote_lookup_seconds", "remote_page_read_seconds"


class _Machine(RemoteTier):
    def __init__(self, store: MemoryStore) -> None:
        self.engine = MemoryEngine(store)
        options = RemoteOptions(
            "redis://somewhere", "cpu", lookup_seconds=DEADLINE, read_seconds=DEADLINE
        )
        super().__init__(self.engine, options, engine_name="memory", where="memory")

    def look_up(self) -> None:
        keys = [STORY.namespace, STORY.chain.key(16), STORY.chain.key(32)]
        self.ask(Inquiry(STORY.namespace, 16, keys, "paged", 0, {}, 32, STORY.chain.key))

    def took(self, measure: str) -> Histogram | None:
        return self.timings().get(measure)


@pytest.fixture
def machine() -> Iterator[_Machine]:
    """A machine, beside another one that has written two pages."""
    store = MemoryStore()
    other = _Machine(store)
    for page in STORY.pages(1, 2):
        assert other.write(page) == "written"
    assert other.close(DEADLINE)
    machine = _Machine(store)
    yield machine
    assert machine.close(DEADLINE)


def _read(machine: _Machine, number: int) -> None:
    with machine.reading(STORY.id(number)) as opened:
        opened.read_into([bytearray(opened.meta.nbytes)])


def test_each_look_up_and_each_page_counts_once(machine: _Machine) -> None:
    assert machine.timings() == {}
    machine.look_up()
    with machine.expect(STORY.ids(1, 2)):
        for number in (1, 2):
            _read(machine, number)
    for measure, count in ((LOOKUPS, 1), (PAGES, 2)):
        took = machine.took(measure)
        assert took is not None
        assert took.count == count
        assert 0 < took.sum < DEADLINE


def test_a_look_up_that_finds_nothing_counts_too(machine: _Machine) -> None:
    machine.engine.store.evict("")
    machine.look_up()
    took = machine.took(LOOKUPS)
    assert took is not None
    assert took.count == 1


@pytest.mark.parametrize("trouble", ["refused", "timeout", "auth", "throttled"])
def test_a_look_up_that_was_not_answered_is_no_figure_of_the_store(
    machine: _Machine, trouble: Trouble
) -> None:
    machine.engine.fail["look"] = trouble
    machine.look_up()
    assert machine.usage().lookups == 1
    assert machine.took(LOOKUPS) is None


def test_a_page_that_came_damaged_or_was_only_looked_into_counts_as_none(
    machine: _Machine,
) -> None:
    machine.look_up()
    with machine.reading(STORY.id(1)) as opened:
        assert opened.meta.id == STORY.id(1)
    for name in machine.engine.store.values:
        machine.engine.store.change(name, lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(CorruptPage):
        _read(machine, 2)
    assert machine.took(PAGES) is None


def test_a_look_up_that_waits_for_the_store_takes_as_long(machine: _Machine) -> None:
    waited = 0.05
    machine.engine.each["look"] = lambda *arguments: machine.engine.closed.wait(waited)
    machine.look_up()
    machine.engine.each["read"] = machine.engine.each["look"]
    _read(machine, 1)
    for measure in (LOOKUPS, PAGES):
        took = machine.took(measure)
        assert took is not None
        assert took.sum >= waited / 2
