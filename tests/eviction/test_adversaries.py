"""`keep` against `lru` through the product's tiers, where what it learned could mislead it."""

import pytest
from eviction.adversaries import ADVERSARIES, BLOCK, agents, another_talk, loop

from kit.examples import some
from omlx_cache.simulate.simulator import Costs, Outcome, Setup, Simulator, TierRoom
from omlx_cache.simulate.traces import Workload

LOSS = 0.005
IN_EVERY_RUN = ("scan", "phases", "loop just too large")
TOKEN_BYTES = 64


def both(
    work: Workload, hot: int, cold: int = 0, written: str = "through"
) -> tuple[Outcome, Outcome]:
    """Return what `lru` and `keep` serve in so many pages of memory and disk."""
    simulator = Simulator(work, TOKEN_BYTES, Costs())
    rooms = TierRoom(hot * BLOCK, True), TierRoom(cold * BLOCK, True)
    lru, keep = (simulator.run(Setup(0, *rooms, policy, written)) for policy in ("lru", "keep"))
    return lru, keep


@pytest.mark.parametrize("name", some([*ADVERSARIES], *IN_EVERY_RUN))
def test_keep_loses_no_more_than_half_a_point_against_lru(name: str) -> None:
    make, rooms = ADVERSARIES[name]
    work = make()
    for room in rooms:
        lru, keep = both(work, room)
        assert keep.share >= lru.share - LOSS, (room, lru.share, keep.share)


@pytest.mark.parametrize(
    "name", some(["bursts", "once more", "phases", "loop of seconds"], "loop of seconds")
)
@pytest.mark.parametrize("written", ["through"])
def test_nor_with_a_disk_behind_it(name: str, written: str) -> None:
    make, rooms = ADVERSARIES[name]
    room = rooms[0]
    lru, keep = both(make(), room, 2 * room, written)
    assert keep.share >= lru.share - LOSS, (lru.share, keep.share)
    assert keep.written_bytes <= 1.01 * lru.written_bytes


@pytest.mark.parametrize("gap", [1.0, 5.0])
def test_keep_serves_most_of_what_can_be_served_of_a_loop_larger_than_memory(gap: float) -> None:
    lru, keep = both(loop(30, gap), 200)
    assert lru.share == 0
    assert keep.ratio > 0.7


@pytest.mark.nightly
def test_keep_writes_less_for_agents_and_serves_no_less() -> None:
    lru, keep = both(agents(), 80, 160)
    assert keep.share >= lru.share + 0.08, (lru.share, keep.share)
    assert keep.written_bytes < 0.7 * lru.written_bytes, (lru.written_bytes, keep.written_bytes)


def test_a_new_habit_waits_ten_minutes_for_memory_at_most() -> None:
    lru, keep = both(another_talk(), 40)
    of_one_request = 1 / 200
    assert keep.share >= lru.share - 10.5 * of_one_request, (lru.share, keep.share)
