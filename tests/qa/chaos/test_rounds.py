"""A round of each fault: nothing wrong, lost, over, stuck or left. `make chaos` runs thousands."""

from collections.abc import Callable

import pytest

from kit.examples import some
from qa.chaos.rounds import BETWEEN_RUNS, ROUNDS
from qa.chaos.tally import Tally
from qa.chaos.world import World

pytestmark = pytest.mark.usefixtures("forks")


@pytest.mark.parametrize(
    "fault",
    some(
        list(ROUNDS),
        "EIO",
        "ENOSPC and EDQUOT",
        "damage while running",
        "threads",
        "interrupts",
        "full disk (tmpfs)",
        "removal",
    ),
)
def test_a_round_goes_well(fault: str, world: Callable[..., World], tally: Tally) -> None:
    ROUNDS[fault](world(fault))
    assert tally.failures == []
    assert tally.sum("sessions") + tally.sum("promises") or fault in tally.skipped


@pytest.mark.nightly
def test_most_flips_are_flips(world: Callable[..., World], tally: Tally) -> None:
    ROUNDS[BETWEEN_RUNS](world(BETWEEN_RUNS, number=2, sessions=96))
    assert tally.failures == []
    assert tally.counted("bit flips") > 20
