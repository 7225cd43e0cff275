"""The bench of systems side by side: its table, and a small run of it."""

from pathlib import Path

import pytest

from benchmarks import side_child
from benchmarks.side_by_side import main
from benchmarks.side_report import Run, differing, markdown

pytestmark = pytest.mark.nightly


def told(seconds: float, logits: str = "right") -> dict[str, object]:
    sizes = {"kept_bytes": 1 << 20, "held_bytes": 2 << 20, "peak_bytes": 3 << 20}
    return {
        "seconds": seconds,
        "restored_seconds": seconds / 2,
        "processor_seconds": 2 * seconds,
        "cached": 96,
        "logits": logits,
        **sizes,
    }


def test_a_row_has_the_fastest_of_its_rounds() -> None:
    runs = [Run("omlx-cache", "turns", 96, told(seconds)) for seconds in (3.0, 2.0, 4.0)]
    row = markdown(runs).splitlines()[2]
    assert row == (
        "| 96 | second turn | omlx-cache, hot tier | 2.00 s | 1.00 s | 4.00 s | 96 "
        "| 1 MiB | 2 MiB | 3 MiB |"
    )


def test_a_system_that_is_not_there_has_a_row_that_says_so() -> None:
    runs = [Run("live", "turns", 96, told(1.0)), Run("mlx-vlm", "restart", 96, {}, "not installed")]
    row = markdown(runs).splitlines()[3]
    assert row.startswith(
        "| 96 | after a restart, in the file cache | mlx-vlm APC, disk | not installed |"
    )


def test_a_system_that_restores_something_else_is_named() -> None:
    runs = [
        Run("live", "turns", 96, told(1.0)),
        Run("nothing", "turns", 96, told(1.0, "rounded otherwise")),
        Run("mlx-lm", "restart", 96, told(1.0, "wrong")),
    ]
    assert differing(runs) == ["mlx-lm (after a restart, in the file cache, 96 tokens)"]
    assert "Not the logits of the live cache: mlx-lm" in markdown(runs)
    assert differing(runs[:2]) == []


@pytest.mark.parametrize("system", ["omlx-cache", "mlx-lm"])
def test_a_phase_resumes_all_of_the_turn_before(system: str, tmp_path: Path) -> None:
    live = side_child.run("live", "turns", 512, tmp_path)
    kept = side_child.run(system, "turns", 512, tmp_path)
    resumed = side_child.run(system, "restart", 512, tmp_path)
    assert live["cached"] == kept["cached"] == resumed["cached"] == 512
    assert live["logits"] == kept["logits"] == resumed["logits"]
    nbytes = 512 * 8192
    assert kept["kept_bytes"] >= nbytes
    assert kept["held_bytes"] >= kept["kept_bytes"] + nbytes
    assert resumed["kept_bytes"] < nbytes <= resumed["held_bytes"] <= resumed["peak_bytes"]


@pytest.mark.nightly
def test_a_small_run_restores_what_the_live_cache_has(tmp_path: Path) -> None:
    (tmp_path / "bed").mkdir()
    written = tmp_path / "out.md"
    flags = ["--tokens", "512", "--rounds", "1", "--dir", str(tmp_path / "bed")]
    assert main([*flags, "--markdown", str(written)]) == 0
    lines = written.read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:] if "|" in line]
    rows = {(row[1], row[2]): row for row in cells}
    for phase, name in (
        ("second turn", "omlx-cache, hot tier"),
        ("second turn", "mlx-lm `LRUPromptCache`"),
        ("after a restart, in the file cache", "omlx-cache, cold tier"),
        ("after a restart, in the file cache", "mlx-lm `load_prompt_cache`"),
    ):
        assert rows[phase, name][6] == "512", "all of the turn before is reused"
    assert rows["second turn", "no cache: computing everything"][6] == "0"
    assert rows["second turn", "mlx-vlm APC, memory"][3] == "not installed (`make bench-peers`)"
    assert "bit for bit" in lines[-1]
    assert not list((tmp_path / "bed").iterdir())
