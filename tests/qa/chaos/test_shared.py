"""One directory, many processes; and the checker sees what is wrong, lost, over, stuck or left."""

import sys
from pathlib import Path

import pytest

from kit.examples import some
from qa.chaos.shared import KILL, ROOMY, TIGHT, TURN, Arena, Plan
from qa.chaos.tally import Tally
from qa.chaos.worker import FLAWS

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux",
        reason="processes are stopped as a whole, and seen to stand, on Linux",
    ),
    pytest.mark.usefixtures("forks"),
]


@pytest.mark.parametrize("verdict", some(FLAWS, "wrong"))
def test_a_flaw_is_seen(verdict: str, tally: Tally, tmp_path: Path) -> None:
    plan = Plan(0, 3, verdict == "lost", processes=3, odds=0.0, flaw=verdict)
    Arena(plan, tmp_path, tally).run()
    assert verdict in {failure.verdict for failure in tally.failures}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("roomy", "turns"), [(False, TIGHT), (True, ROOMY)], ids=["tight", "roomy"]
)
def test_killed_processes_stay_under_one_budget_and_find_what_others_flushed(
    roomy: bool, turns: tuple[str, ...], tally: Tally, tmp_path: Path
) -> None:
    plan = Plan(0, 7, roomy, turns, rounds=TURN * len(turns))
    Arena(plan, tmp_path, tally).run()
    assert tally.failures == []
    assert tally.counted(KILL) >= 3
    assert tally.sum("found") > 0
