"""Whether a restore reads: by counts of tokens and bytes, and seconds that the test makes up."""

from collections.abc import Mapping

import pytest

from omlx_cache.adapters.base import PAGED, GroupSpec
from omlx_cache.restore.lookup import (
    CLEARLY,
    LEAST_SECONDS,
    PROBE_EVERY,
    READS,
    ReadingGate,
    RestoreGate,
    RestorePoint,
    find_restore_point,
)
from omlx_cache_storage.keys import BlockKey, KeyChain, as_tokens, namespace_digest
from omlx_cache_storage.measures import WorkMeter
from omlx_cache_storage.page import COLD, REMOTE, PageId, PageInfo, Tail

TOKENS = 2048
NBYTES = 1 << 30
SECONDS = 2.0
"""What computing `TOKENS` takes."""


class TimedMachine:
    """A gate beside a device and tiers that take what the test says. No clock runs."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.work = WorkMeter(lambda: self.now)
        self.gate = ReadingGate(self.work)

    def compute(self, tokens: int = TOKENS, seconds: float = SECONDS, model: str = "m") -> None:
        self.now += seconds
        self.work.request(model, "").computed(tokens, seconds)

    def read(self, seconds: float, *, nbytes: int = NBYTES, tier: str = REMOTE) -> None:
        self.gate.note(nbytes, seconds, {tier: nbytes})

    def reads(self, seconds: float, *, nbytes: int = NBYTES, tier: str = REMOTE) -> None:
        for _ in range(READS):
            self.read(seconds, nbytes=nbytes, tier=tier)

    def reason(self, nbytes: Mapping[str, int] | None = None, model: str = "m") -> str:
        return self.gate.slower(model, TOKENS, nbytes or {REMOTE: NBYTES})

    def restore(self, seconds: float) -> bool:
        """Restore what takes so many seconds to read, unless that is rejected."""
        gate = RestoreGate(self.gate, "m")
        rejected = bool(gate.rejects(TOKENS, {REMOTE: NBYTES}))
        if not rejected:
            self.gate.note(NBYTES, seconds, {REMOTE: NBYTES})
        return not rejected


@pytest.fixture
def machine() -> TimedMachine:
    made = TimedMachine()
    made.compute()
    return made


def test_reading_is_rejected_where_computing_is_clearly_faster(machine: TimedMachine) -> None:
    machine.reads(1.01 * CLEARLY * SECONDS)
    assert machine.reason() == (
        "slower_than_computing:2,048 tokens, about 2.52 s to read and 2 s to compute"
    )


def test_reading_is_admitted_where_it_is_about_as_fast(machine: TimedMachine) -> None:
    machine.reads(0.99 * CLEARLY * SECONDS)
    assert machine.reason() == ""


def test_a_difference_that_nobody_notices_is_no_reason(machine: TimedMachine) -> None:
    machine.reads(10.0)
    tokens = 16
    nbytes = int(NBYTES * (tokens * SECONDS / TOKENS + LEAST_SECONDS) / 10.0)
    assert machine.gate.slower("m", tokens, {REMOTE: int(0.99 * nbytes)}) == ""
    assert machine.gate.slower("m", tokens, {REMOTE: int(1.01 * nbytes)}) != ""


@pytest.mark.parametrize("known", ["nothing", "a model", "a link", "another model", "another tier"])
def test_without_evidence_of_both_everything_is_read(known: str) -> None:
    machine = TimedMachine()
    if known != "nothing":
        machine.compute(model="other" if known == "another model" else "m")
    if known == "a link":
        machine = TimedMachine()
    if known not in ("nothing", "a model"):
        machine.reads(100.0, tier=COLD if known == "another tier" else REMOTE)
    assert machine.reason() == ""


def test_three_reads_are_evidence_and_fewer_are_none(machine: TimedMachine) -> None:
    for _ in range(READS - 1):
        machine.read(100.0)
        assert machine.reason() == ""
    machine.read(100.0)
    assert machine.reason() != ""


def test_one_slow_read_changes_nothing_and_one_fast_read_is_believed(machine: TimedMachine) -> None:
    machine.reads(0.01)
    machine.read(100.0)
    assert machine.reason() == ""
    machine.reads(100.0)
    assert machine.reason() != ""
    machine.read(0.01)
    assert machine.reason() == ""


def test_one_in_eight_reads_to_try_again(machine: TimedMachine) -> None:
    machine.reads(100.0)
    turn = [False] * (PROBE_EVERY - 1) + [True]
    assert [machine.restore(100.0) for _ in range(3 * PROBE_EVERY)] == 3 * turn


SIZE, BLOCKS = 16, 8
WINDOW = GroupSpec("window", 2 * SIZE)
CHAIN = KeyChain(namespace_digest({"a": 1}), as_tokens(range(BLOCKS * SIZE)), SIZE)


class ChainView:
    """A chain's pages: the first `hot` of a group in memory, the rest on other machines."""

    def __init__(self, groups: tuple[GroupSpec, ...], hot: Mapping[str, int]) -> None:
        self._pages = {
            PageId(CHAIN.key(block * SIZE), group.name): PageInfo(
                block * SIZE, SIZE, 1 << 20, "hot" if block <= hot[group.name] else REMOTE
            )
            for group in groups
            for block in range(1, BLOCKS + 1)
        }

    def find_all(self, pages: list[PageId]) -> list[PageInfo | None]:
        return [self._pages.get(page) for page in pages]

    def tails_of(self, parents: list[BlockKey]) -> set[Tail]:
        return set()


def found(hot: Mapping[str, int], *groups: GroupSpec, slow: bool = True) -> RestorePoint:
    """Look up a chain of which memory has some blocks and other machines have all."""
    machine = TimedMachine()
    machine.compute(1024, 0.001)
    machine.reads(100.0 if slow else 1e-4, nbytes=BLOCKS << 20)
    gate = RestoreGate(machine.gate, "m")
    view = ChainView(groups, hot)
    return find_restore_point(CHAIN, groups, view, limit=len(CHAIN), gate=gate)  # type: ignore[arg-type]


@pytest.mark.parametrize("hot", range(BLOCKS))
def test_what_is_in_memory_is_restored_and_the_rest_not_read(hot: int) -> None:
    point = found({"paged": hot}, PAGED)
    assert (point.position, point.matched) == (hot * SIZE, BLOCKS * SIZE)
    assert str(point.reason).startswith(f"slower_than_computing:{(BLOCKS - hot) * SIZE} tokens, ")
    uses = [use for uses in point.uses.values() for use in uses]
    assert len(uses) == hot
    assert all(use.info.in_memory for use in uses)


def test_a_window_that_is_not_in_memory_is_not_read_for_a_shorter_position_either() -> None:
    """Memory has the blocks up to 6 and the window up to 4: 4 is where both are."""
    point = found({"paged": 6, WINDOW.name: 4}, PAGED, WINDOW)
    assert point.position == 4 * SIZE
    assert all(use.info.in_memory for uses in point.uses.values() for use in uses)
