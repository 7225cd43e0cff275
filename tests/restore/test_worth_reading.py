"""How much of a prefix is worth reading: by arithmetic, and by what is learned on a clock that
stands still."""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from kit.examples import examples
from omlx_cache.adapters.base import PAGED, STATE, GroupSpec
from omlx_cache.restore.gate import TRY_AFTER, GatedRestore, ReadingGate
from omlx_cache.restore.lookup import GroupPages
from omlx_cache.restore.worth import CLEARLY, LEAST_SECONDS, Candidates, Choice, Costs, choose
from omlx_cache_storage.costs import LASTS_SECONDS, LEAST_READS, TokenCost
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId, PageInfo
from omlx_cache_storage.work import WorkMeter

BLOCK = 256
PAGE = 1 << 20


def of(pages: list[int], costs: Costs, points: list[int]) -> tuple[Choice, dict[int, float]]:
    """Return what is chosen among points for pages of so many cold bytes, and what each costs."""

    def cold_bytes(position: int) -> int:
        return sum(pages[: position // BLOCK])

    before = [0, *accumulate(pages)]
    wanted = Candidates(points[0], iter(points[1:]), cold_bytes, BLOCK, lambda: before)
    choice = choose(costs, wanted)
    assert choice == choose(costs, replace(wanted, shorter=points[1:], least_bytes=tuple))
    seconds = {
        point: costs.per_byte * cold_bytes(point) + CLEARLY * costs.token.seconds(point, points[0])
        for point in [*points, 0]
    }
    return choice, seconds


costs_of = st.builds(
    lambda read, first, growth: Costs(read / PAGE, TokenCost(first, growth, 1e9)),
    st.floats(1e-4, 10.0),
    st.floats(1e-6, 1e-1),
    st.floats(0.0, 1e-5),
)
pages_of = st.lists(st.sampled_from([0, PAGE, 3 * PAGE]), min_size=1, max_size=24)


@given(st.data(), pages_of, costs_of)
@profile(max_examples=examples(200), deadline=None)
def test_what_is_chosen_costs_least_of_all_that_can_be_restored(
    data: st.DataObject, pages: list[int], costs: Costs
) -> None:
    ends = [BLOCK * (block + 1) for block in range(len(pages))]
    points = sorted(data.draw(st.sets(st.sampled_from(ends), min_size=1)), reverse=True)
    choice, seconds = of(pages, costs, points)
    longest = points[0]
    if choice.passed is None:
        assert choice.position == longest
        assert seconds[longest] - min(seconds.values()) < LEAST_SECONDS
    else:
        assert seconds[choice.position] == min(seconds.values())
        assert seconds[choice.position] <= seconds[0]
        assert choice.passed.position == longest
        assert choice.passed.tokens == longest - choice.position
        # Clearly quicker by what is told, too.
        assert choice.passed.read_seconds > CLEARLY * choice.passed.compute_seconds


@given(pages_of, costs_of)
@profile(max_examples=examples(100), deadline=None)
def test_pages_in_memory_in_front_of_cold_ones_are_always_used(
    pages: list[int], costs: Costs
) -> None:
    hot = [0, 0, 0, *pages]
    points = [BLOCK * (block + 1) for block in range(len(hot))][::-1]
    choice, _ = of(hot, costs, points)
    assert choice.position >= 3 * BLOCK


def test_where_reading_pays_hardly_a_position_is_weighed() -> None:
    """A look-up is no slower for that."""
    weighed = []

    def cold_bytes(position: int) -> int:
        weighed.append(position)
        return before[position // BLOCK] + 3 * PAGE

    before = [block * PAGE for block in range(513)]
    costs = Costs(0.1 / PAGE, TokenCost(1e-3, 0.0, 1e9))
    points = range(511 * BLOCK, 0, -BLOCK)
    wanted = Candidates(512 * BLOCK, points, cold_bytes, BLOCK, lambda: before)
    assert choose(costs, wanted) == Choice(512 * BLOCK)
    assert len(weighed) < 8


def test_half_of_a_prefix_is_read_where_half_is_best() -> None:
    """Pages that are large, or tokens that are cheap, at the deep end only."""
    costs = Costs(0.1 / PAGE, TokenCost(1e-3, 0.0, 1e9))
    points = [BLOCK * blocks for blocks in range(8, 0, -1)]
    choice, _ = of([PAGE] * 4 + [9 * PAGE] * 4, costs, points)
    assert choice.position == 4 * BLOCK
    assert choice.passed is not None
    assert choice.passed.reason == (
        "slower_than_computing:1,024 tokens, about 3.6 s to read and 1 s to compute"
    )


class Time:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Machine:
    """A gate, with a disk and a device that take what the test says for a block."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.time = Time()
        self.work = WorkMeter(self.time)
        self.gate = ReadingGate(self.work, enabled=enabled, clock=self.time)
        self.read_seconds = self.compute_seconds = 0.1

    def compute(self, blocks: int) -> None:
        seconds = blocks * self.compute_seconds
        self.time.now += seconds
        self.work.request("m", "", "n").computed(blocks * BLOCK, seconds)

    def restore(self, blocks: int = 8) -> int:
        """Restore or compute a prefix that the disk has; return how many blocks were restored."""
        gated = self.gate.restore("m", "n")
        choice = self.chosen(gated, blocks)
        read = choice.position // BLOCK
        self.time.now += read * self.read_seconds
        gated.took(read * PAGE, read * PAGE, read * self.read_seconds)
        if choice.passed is not None:
            gated.passed_by()
        if read < blocks:
            self.compute(blocks - read)
        return read

    def chosen(self, gated: GatedRestore, blocks: int = 8) -> Choice:
        points = range((blocks - 1) * BLOCK, 0, -BLOCK)
        return gated.choose(
            Candidates(blocks * BLOCK, points, lambda position: position // BLOCK * PAGE, BLOCK)
        )


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_without_evidence_all_is_read(machine: Machine) -> None:
    machine.read_seconds = 10.0
    assert [machine.restore() for _ in range(2 * LEAST_READS)] == [8] * 2 * LEAST_READS
    machine.compute(16)
    assert machine.restore() == 0
    fresh = Machine()
    fresh.read_seconds = 10.0
    fresh.compute(16)
    assert [fresh.restore() for _ in range(LEAST_READS)] == [8] * LEAST_READS
    assert fresh.restore() == 0


def test_what_is_not_clearly_slower_is_read(machine: Machine) -> None:
    machine.compute(16)
    machine.read_seconds = (CLEARLY - 0.01) * machine.compute_seconds
    assert [machine.restore() for _ in range(6)] == [8] * 6


def test_one_slow_read_is_no_reason_to_compute(machine: Machine) -> None:
    machine.compute(16)
    machine.read_seconds = 0.01
    for _ in range(4):
        machine.restore()
    machine.read_seconds = 10.0
    assert machine.restore() == 8
    machine.read_seconds = 0.01
    assert [machine.restore() for _ in range(6)] == [8] * 6


def test_a_slow_disk_is_tried_again_and_read_at_once_when_it_has_become_quick(
    machine: Machine,
) -> None:
    machine.compute(16)
    machine.read_seconds = 10.0
    for _ in range(LEAST_READS):
        machine.restore()
    for _ in range(2):
        assert [machine.restore() for _ in range(TRY_AFTER + 1)] == [0] * TRY_AFTER + [8]
    machine.read_seconds = 0.01
    assert [machine.restore() for _ in range(TRY_AFTER + 5)] == [0] * TRY_AFTER + [8] * 5


def test_what_was_slow_long_ago_is_read_again(machine: Machine) -> None:
    machine.compute(16)
    machine.read_seconds = 10.0
    for _ in range(LEAST_READS):
        machine.restore()
    assert machine.restore() == 0
    machine.time.now += LASTS_SECONDS
    assert machine.restore() == 8


def test_a_device_that_became_slow_has_the_disk_read_again(machine: Machine) -> None:
    machine.compute(16)
    machine.read_seconds = 0.3
    for _ in range(LEAST_READS):
        machine.restore()
    assert machine.restore() == 0
    machine.compute_seconds = 3.0
    machine.compute(16)
    assert machine.restore() == 8


def test_far_beyond_what_was_ever_computed_all_is_read(machine: Machine) -> None:
    machine.compute(8)
    machine.read_seconds = 10.0
    for _ in range(LEAST_READS):
        assert machine.restore(20) == 20
    assert machine.restore(20) == 20
    assert machine.restore(16) == 0


def test_a_restore_that_was_mostly_in_memory_says_nothing_of_the_disk(machine: Machine) -> None:
    machine.compute(16)
    for _ in range(LEAST_READS):
        machine.gate.restore("m", "n").took(8 * PAGE, 3 * PAGE, 80.0)
    assert machine.restore() == 8


def test_one_restore_decides_alike_however_often_it_looks(machine: Machine) -> None:
    machine.compute(16)
    machine.read_seconds = 10.0
    for _ in range(LEAST_READS + TRY_AFTER):
        machine.restore()
    asking = machine.gate.restore("m", "n", tries=False)
    assert [machine.chosen(asking).position for _ in range(3)] == [0] * 3
    trying = machine.gate.restore("m", "n")
    assert [machine.chosen(trying).position for _ in range(3)] == [8 * BLOCK] * 3
    assert machine.chosen(machine.gate.restore("m", "n")).position == 0


def test_switched_off_it_reads_all() -> None:
    machine = Machine(enabled=False)
    machine.compute(16)
    machine.read_seconds = 10.0
    assert [machine.restore() for _ in range(6)] == [8] * 6


LAYOUTS = {
    "dense": (PAGED,),
    "windows": (PAGED, GroupSpec("window", 100)),
    "sinks": (PAGED, GroupSpec("window", 100, 64)),
    "hybrid": (PAGED, STATE),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@given(st.data())
@profile(max_examples=examples(50), deadline=None)
def test_what_a_position_reads_is_what_its_pages_have(layout: str, data: st.DataObject) -> None:
    """With tails, pages of either tier, and pages that are gone."""
    size, length = 32, 32 * 12
    for group in LAYOUTS[layout]:
        pages = GroupPages(group, size)
        ends = {*range(size, length + 1, size), *data.draw(st.sets(st.integers(1, length)))}
        for end in sorted(ends - data.draw(st.sets(st.sampled_from(sorted(ends)), max_size=2))):
            held = 0 if group is STATE else (end - 1) % size + 1
            tier = data.draw(st.sampled_from(["hot", "cold"]))
            info = PageInfo(end, held, data.draw(st.integers(1, 9)), tier)
            pages.pages[end] = PageId(BlockKey(bytes(32)), group.name), info
        pages.index(length)
        for position in (end for end in ends if pages.rebuilds(end)):
            reads = [use.info for use in pages.needed(position) if use.info.tier == "cold"]
            assert pages.read_bytes(position) == sum(info.nbytes for info in reads)
