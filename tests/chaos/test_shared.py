"""One directory, many processes: never over its budget, and what one flushed the others find."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.shared.arena import KILL, Arena
from chaos.shared.run import Length, plans, run
from chaos.tally import Tally
from kit import forks

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are stopped as a whole, and seen to stand, on Linux"
)


@pytest.fixture(scope="module", autouse=True)
def _one_process_forks_all() -> None:
    forks.parent()


Run = Callable[..., Arena]


@pytest.fixture
def run_briefly(tmp_path: Path, tally: Tally) -> Run:
    """Run a short round of a name, with a few kills and each of its disturbances once, until so
    much of what is named has been counted."""

    def run_it(name: str, **least: int) -> Arena:
        plan = replace(plans(Length(8.0), 7)[name], seconds=4.5, disturb_every=1.4, kill_every=0.8)
        wanted = {KILL: 3, "exact": 21, **least}
        arena = run(replace(plan, least=wanted), tally, tmp_path)
        if arena is None:
            pytest.skip(f"mounting a small disk needs root or CAP_SYS_ADMIN: {tally.document()}")
        assert tally.counted(KILL) >= 3
        assert arena.sampler.counts["exact"] > 20
        return arena

    return run_it


@pytest.mark.nightly
def test_processes_that_are_killed_stay_under_one_budget_and_read_right_bytes(
    run_briefly: Run, tally: Tally
) -> None:
    run_briefly("tight", read=101, evicted=1)
    assert tally.document()["failures"] == []
    assert tally.sum("read") > 100
    assert tally.sum("evicted") > 0


@pytest.mark.nightly
def test_processes_on_a_full_disk_stay_under_one_budget_and_read_right_bytes(
    run_briefly: Run, tally: Tally
) -> None:
    run_briefly("small disk", read=101)
    assert tally.document()["failures"] == []
    assert tally.sum("read") > 100


@pytest.mark.nightly
def test_what_a_process_flushed_the_next_look_up_of_another_finds(
    run_briefly: Run, tally: Tally
) -> None:
    run_briefly("roomy", found=101)
    assert tally.document()["failures"] == []
    assert tally.sum("found") > 100
