"""A round of each fault: nothing wrong, lost, over, stuck or left. `make chaos` runs thousands."""

from collections.abc import Callable

import pytest

from chaos import kills
from chaos.campaign import DAMAGE, KILLS, rounds
from chaos.tally import Tally
from chaos.world import World
from kit import forks
from kit.examples import some

ROUNDS = rounds()


@pytest.fixture(scope="module", autouse=True)
def _one_process_forks_all() -> None:
    if forks.CAN_FORK:
        forks.parent()


@pytest.mark.parametrize(
    "fault",
    some(
        [name for name in ROUNDS if name != KILLS],
        "EIO",
        "ENOSPC and EDQUOT",
        "damage while running",
        "threads",
        "full disk (tmpfs)",
        "removal",
    ),
)
def test_a_round_goes_well(fault: str, world: Callable[..., World], tally: Tally) -> None:
    ROUNDS[fault](world(fault))
    assert tally.document()["failures"] == []
    assert tally.sum("sessions") > 0 or fault in tally.document()["skipped"]


def test_killed_processes_keep_what_flush_promised(
    world: Callable[..., World], tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "LIVES", 3)
    monkeypatch.setattr(kills, "SESSIONS", 12)
    ROUNDS[KILLS](world(KILLS, number=1))
    assert tally.document()["failures"] == []
    assert tally.counted(KILLS) == 3


@pytest.mark.nightly
def test_most_flips_are_flips(world: Callable[..., World], tally: Tally) -> None:
    ROUNDS[DAMAGE](world(DAMAGE, number=2, sessions=96))
    assert tally.document()["failures"] == []
    assert tally.counted("bit flips") > 20
