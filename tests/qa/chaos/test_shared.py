"""One directory, many processes; and the checker sees what is wrong, lost, over, stuck or left."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import forks
from kit.examples import some
from kit.storage import Story, commit, files_in, open_store
from qa.chaos.directory import Sampler, nbytes, surely, walk
from qa.chaos.flawed import FLAWS, VARIABLE
from qa.chaos.processes import Processes
from qa.chaos.shared import KILL, ROOM_BYTES, ROOMY, TIGHT, Arena, Plan
from qa.chaos.tally import Tally

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are stopped as a whole, and seen to stand, on Linux"
)
KIB = 1024


@pytest.fixture(scope="module", autouse=True)
def _one_process_forks_all() -> None:
    if forks.CAN_FORK:
        forks.parent()


@on_linux
@pytest.mark.parametrize("verdict", some(FLAWS, "wrong"))
def test_a_flaw_is_seen(
    verdict: str, tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, verdict)
    plan = Plan(
        1, 3, verdict == "lost", kill_every=10.0, audit_every=0.4, writers=2, readers=1, odds=0.0,
        worker="qa.chaos.flawed", least={"failures": 1},
    )  # fmt: skip
    Arena(plan, tmp_path / "cold", tally).run()
    assert verdict in {failure.verdict for failure in tally.failures}


@on_linux
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("roomy", "turns", "least"),
    [(False, TIGHT, {"read": 101, "gone": 1}), (True, ROOMY, {"found": 101})],
    ids=["tight", "roomy"],
)
def test_killed_processes_stay_under_one_budget_and_find_what_others_flushed(
    roomy: bool, turns: tuple[str, ...], least: dict[str, int], tally: Tally, tmp_path: Path
) -> None:
    least |= {KILL: 3, "exact": 21}
    plan = Plan(4.5, 7, roomy, turns, kill_every=0.8, disturb_every=1.4, least=least)
    Arena(plan, tmp_path / "cold", tally).run()
    assert tally.failures == []
    assert tally.counted(KILL) >= 3


Found = list[tuple[str, str]]


@pytest.fixture
def found() -> Found:
    return []


@pytest.fixture
def sampler(found: Found) -> Callable[[Path, int], Sampler]:
    """Makes samplers of a directory without processes."""
    nobody = Processes("nothing", lambda role: {})
    return lambda path, budget: Sampler(path, budget, nobody, lambda *one: found.append(one))


def test_a_byte_beyond_the_budget_is_over(
    sampler: Callable[[Path, int], Sampler], found: Found, tmp_path: Path
) -> None:
    (tmp_path / "some").write_bytes(bytes(8 * KIB))
    budget = nbytes(walk(tmp_path))
    exact = sampler(tmp_path, budget)
    exact.sample()
    assert (exact.exact_samples, found) == (1, [])
    over = sampler(tmp_path, budget - 1)
    over.sample()
    over.sample()
    assert {verdict for verdict, _ in found} == {"over"}
    assert sum("surely" in what for _, what in found) == 1
    assert sum("all stopped" in what for _, what in found) == 2


def test_what_moves_between_two_walks_is_not_surely_there(tmp_path: Path) -> None:
    for name in ("stays", "moves", "leaves"):
        (tmp_path / name).write_bytes(bytes(8 * KIB))
    before = walk(tmp_path)
    os.rename(tmp_path / "moves", tmp_path / "moved")
    (tmp_path / "leaves").unlink()
    (tmp_path / "comes").write_bytes(bytes(8 * KIB))
    after = walk(tmp_path)
    assert surely(before, after) == nbytes(after) - 2 * 8 * KIB


def test_two_files_of_a_page_and_a_writers_leftover_are_left(
    sampler: Callable[[Path, int], Sampler], found: Found, tmp_path: Path
) -> None:
    cold, story = tmp_path / "cold", Story()
    with open_store(cold) as store:
        commit(store, story, 1, 2)
        assert store.flush()
    resting = sampler(cold, ROOM_BYTES)
    resting.rest()
    assert found == []
    page = files_in(cold)[0]
    os.link(page, page.with_name(page.name.replace("-16-paged", "-8-paged")))
    (page.parent / ".tmp-1-x-0").touch()
    resting.rest()
    assert [verdict for verdict, _ in found] == ["left"]
    resting.rest()
    assert sum("temporary" in what for _, what in found) == 1


@pytest.mark.parametrize(
    "wrong",
    [{"nbytes": 899}, {"limit_bytes": 999}, {"corrupt": 1}, {"state": "full"}, {"broken": "it"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_store_that_counts_something_else_is_seen(
    wrong: dict[str, object], sampler: Callable[[Path, int], Sampler], found: Found, tmp_path: Path
) -> None:
    right = {"nbytes": 900, "limit_bytes": 1000, "corrupt": 0, "state": "ok"}
    resting = sampler(tmp_path, 1000)
    resting.compare("one", right, 900)
    assert found == []
    resting.compare("one", {**right, **wrong}, 900)
    assert len(found) == 1
