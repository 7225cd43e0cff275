"""Whether other machines are asked, and how much of what they have is read: by what it takes."""

from collections.abc import Callable

import pytest

from omlx_cache.restore.gate import ASKING_TRIPS, Link, ReadingGate
from omlx_cache.restore.worth import CLEARLY, Candidates, Choice
from omlx_cache_storage.work import WorkMeter

BLOCK, PAGE = 16, 1000
TOKENS = 8 * BLOCK


class Machine:
    """A gate on a clock that stands still, beside a link; a token takes a millisecond."""

    def __init__(self, link: Callable[[], Link | None], *, enabled: bool = True) -> None:
        self.now = 1000.0
        work = WorkMeter(lambda: self.now)
        self.gate = ReadingGate(work, enabled=enabled, clock=lambda: self.now, link=link)
        self.now += 2.0
        work.request("m", "", "n").computed(2000, 2.0)

    def asks(self, tokens: int) -> bool:
        return self.gate.restore("m", "n").worth_asking(0, tokens)

    def choose(self, local: int) -> Choice:
        """Choose among eight blocks, of which the first `local` are in memory."""

        def far(position: int) -> int:
            return max(0, position // BLOCK - local) * PAGE

        points = range(TOKENS - BLOCK, 0, -BLOCK)
        candidates = Candidates(TOKENS, points, lambda position: 0, BLOCK, remote_bytes=far)
        return self.gate.restore("m", "n").choose(candidates)

    def took(self, seconds: float) -> None:
        self.gate.restore("m", "n").took(8 * PAGE, 0, seconds, 8 * PAGE)


@pytest.mark.parametrize("latency", [0.0, 0.01, 0.1])
def test_nobody_is_asked_for_what_is_computed_sooner(latency: float) -> None:
    machine = Machine(lambda: Link(latency, None))
    enough = int(ASKING_TRIPS * latency * 1000)
    assert machine.asks(enough + 1)
    if enough:
        assert not machine.asks(enough - 1)


def test_what_is_not_known_is_asked_for() -> None:
    assert Machine(lambda: None).asks(1)
    assert Machine(lambda: Link(10.0, None), enabled=False).asks(1)
    assert Machine(lambda: Link(10.0, None)).gate.restore("other", "n").worth_asking(0, 1)


@pytest.mark.parametrize(("seconds", "read"), [(0.5, 8), (2.0, 3)])
def test_a_slow_link_is_passed_by_and_a_quick_one_is_not(seconds: float, read: int) -> None:
    # A block takes 16 ms to compute, and an eighth of `seconds` and more of that to come.
    machine = Machine(lambda: Link(0.001, seconds * BLOCK * CLEARLY / 1000 / PAGE))
    choice = machine.choose(3)
    assert choice.position == read * BLOCK
    assert (choice.passed is None) == (read == 8)


def test_what_restores_took_counts_more_than_what_the_link_says() -> None:
    machine = Machine(lambda: Link(0.001, 1e-9))
    assert machine.choose(0).position == TOKENS
    for _ in range(3):
        machine.took(10.0)
    assert machine.choose(0).position == 0


def test_without_a_known_rate_all_is_read() -> None:
    assert Machine(lambda: Link(0.001, None)).choose(0).position == TOKENS
