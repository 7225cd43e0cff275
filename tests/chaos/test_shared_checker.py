"""The checker of shared directories: it sees what is wrong, lost, over, stuck or left."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.shared.arena import ROOM_BYTES, Plan
from chaos.shared.audit import Auditor
from chaos.shared.flawed import FLAWS, VARIABLE
from chaos.shared.measuring import nbytes, surely, temporary, twice, walk
from chaos.shared.processes import Processes
from chaos.shared.run import run
from chaos.shared.sampling import Sampler
from chaos.tally import Tally
from kit import forks
from kit.examples import some
from kit.storage import Story, commit, files_in, open_store

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
    seen = {"failures": 1}
    plan = Plan(1, 3, verdict == "lost", audit_every=0.4, writers=2, readers=1, least=seen)
    run(replace(plan, odds=0.0, kill_every=10.0, worker="chaos.shared.flawed"), tally, tmp_path)
    assert verdict in {failure["verdict"] for failure in tally.document()["failures"]}


def test_a_byte_beyond_the_budget_is_over(tmp_path: Path) -> None:
    found: list[str] = []
    (tmp_path / "some").write_bytes(bytes(8 * KIB))
    budget = nbytes(walk(tmp_path))
    nobody = Processes("nothing", lambda role: {})
    Sampler(tmp_path, budget, nobody, found.append).exact()
    assert found == []
    sampler = Sampler(tmp_path, budget - 1, nobody, found.append)
    sampler.exact()
    assert [words.partition(" (")[0] for words in found] == [
        f"1 bytes over the budget of {budget - 1}"
    ]
    sampler.sample()
    sampler.sample()
    assert sum("surely" in words for words in found) == 1


def test_what_moves_between_two_walks_is_not_surely_there(tmp_path: Path) -> None:
    (tmp_path / "stays").write_bytes(bytes(8 * KIB))
    (tmp_path / "moves").write_bytes(bytes(8 * KIB))
    (tmp_path / "leaves").write_bytes(bytes(8 * KIB))
    before = walk(tmp_path)
    os.rename(tmp_path / "moves", tmp_path / "moved")
    (tmp_path / "leaves").unlink()
    (tmp_path / "comes").write_bytes(bytes(8 * KIB))
    after = walk(tmp_path)
    whole = nbytes(after) - 2 * 8 * KIB
    assert surely(before, after) == whole


def test_two_files_of_a_page_and_a_writers_leftover_are_left(tmp_path: Path, tally: Tally) -> None:
    cold, story = tmp_path / "cold", Story()
    with open_store(cold) as store:
        commit(store, story, 1, 2)
        assert store.flush()
    auditor = Auditor(cold, ROOM_BYTES, lambda verdict, what: tally.fail("here", verdict, what, ""))
    auditor.measure()
    assert tally.failed == 0
    page = files_in(cold)[0]
    other = page.with_name(page.name.replace("-16-paged", "-8-paged"))
    assert other != page
    os.link(page, other)
    (page.parent / ".tmp-1-x-0").touch()
    assert len(twice(walk(cold))) == len(temporary(walk(cold))) == 1
    auditor.measure()
    assert [failure["verdict"] for failure in tally.document()["failures"]] == ["left"]
    auditor.measure()
    assert sum("temporary" in failure["what"] for failure in tally.document()["failures"]) == 1


def test_a_store_that_counts_less_than_there_is_or_knows_another_limit_is_seen(
    tally: Tally, tmp_path: Path
) -> None:
    auditor = Auditor(tmp_path, 1000, lambda verdict, what: tally.fail("here", verdict, what, ""))
    right = {"nbytes": 900, "limit_bytes": 1000, "corrupt": 0, "state": "ok"}
    auditor.compare("one", right, 900)
    assert tally.failed == 0
    for number, wrong in enumerate(
        (
            {"nbytes": 899},
            {"limit_bytes": 999},
            {"corrupt": 1},
            {"state": "full"},
            {"broken": "it says"},
        ),
        1,
    ):
        auditor.compare("one", {**right, **wrong}, 900)
        assert tally.failed == number
