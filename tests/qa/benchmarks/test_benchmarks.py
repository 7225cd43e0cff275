"""Each benchmark beside the product measures what it says: small runs, their tables and plots."""

import gzip
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import growth, overhead, profile_paths, replay, shared, side_by_side, side_child
from benchmarks.replay_trace import Scale, read_trace
from benchmarks.shared_child import store_all
from omlx_cache.tools.bench.bed import pages_of
from omlx_cache.tools.bench.figures import SIZES, BenchRow
from omlx_cache_storage.cold.tier import ColdTier

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
BIG = 1 << 30


def grown(what: str, power: float, counts: list[int]) -> list[growth.Grown]:
    """Rows that take a microsecond times a power of their length, and a bound of half as much."""
    times = [(count, 1e-6 * count**power) for count in counts]
    return [growth.Grown(n, BenchRow(what, time, "the bound", time / 2)) for n, time in times]


def test_growth_is_the_power_of_the_length_that_its_table_and_plot_show() -> None:
    assert growth.lengths(1024, 5000) == [1024, 4096]
    for power in (0.0, 0.5, 1.0, 2.0):
        rows = [*grown("x", 0.0, [1, 4, 16]), *grown("x", power, [64, 256, 1024])]
        assert growth.steepness(rows) == pytest.approx(power), "short calls do not count"
    rows = [*grown("restore", 1.0, [1024, 4096]), *grown("look-up", 0.0, [1024, 4096])]
    table = growth.markdown(rows, rows, {"hot": 668.6}).splitlines()
    assert table[2] == (
        "| restore | the bound | 1.02 ms (0.50) | 4.10 ms (0.50) | linear, power 1.00 |"
    )
    plot = list(ElementTree.fromstring(growth.svg(rows, "tokens")).iter())
    for kind in ("circle", "polyline"):
        assert sum(element.tag.endswith(kind) for element in plot) == 4


def test_a_small_run_of_growth_measures_every_series_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    (tmp_path / "bed").mkdir()
    written = tmp_path / "out.md"
    sizes = ["--tokens", "1024", "--pages", "4096", "--runs", "1"]
    places = ["--dir", str(tmp_path / "bed"), "--markdown", str(written), "--svg", str(tmp_path)]
    assert growth.main([*sizes, *places]) == 0
    rows = {line.split("|")[1].strip() for line in written.read_text().splitlines() if "(" in line}
    kinds = ("restore", "look-up", "eviction of a page")
    tiers = [f"{what}, {tier}" for what in kinds for tier in ("cold", "hot")]
    assert rows == {"commit", "look-up", "start-up", *tiers}
    assert not list((tmp_path / "bed").iterdir())
    for argument in (("--tokens", "10"), ("--svg", "/no/such/folder"), ("--runs", "0")):
        with pytest.raises(SystemExit):
            growth.main(argument)


def test_overheads_and_shared_directories_are_measured(tmp_path: Path) -> None:
    tiny = SIZES["tiny"]
    rows = [*overhead.measure_overhead(tiny, tmp_path / "overhead")]
    (tmp_path / "shared").mkdir()
    rows += shared.measure_shared(tiny, tmp_path / "shared")
    assert len(rows) == 10 + 16
    assert all(row.ours > 0 and row.other > 0 for row in rows)


def test_a_tier_that_tells_nobody_is_not_followed_and_a_crowd_stores_the_same_pages_once(
    tmp_path: Path,
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with closing(ColdTier(one, BIG)) as other, closing(shared.Untold(one, BIG)) as silent:
        other.open()
        silent.open()
        assert store_all(silent, pages_of(1, 2, 16)) == 2
        assert not other.refresh()
    with closing(shared.Crowd(two, BIG, 2)) as crowd:
        assert crowd.write([[(1, 2)], [(2, 3)]]) == 5
        assert crowd.write([[(3, 4)], [(3, 4)]]) == 4


@pytest.mark.parametrize("path", ["restore-cold", "commit", "append-hybrid", "start-up"])
def test_a_profile_names_lines_of_this_project(path: str, monkeypatch: Any) -> None:
    small = {"TOKENS": 1024, "APPENDED": 256, "FILES": 256, "SAMPLES": 12, "LAYERS": 2}
    for name, value in small.items():
        monkeypatch.setattr(profile_paths, name, value)
    lines = [line for line in profile_paths.profile(path).splitlines() if "%" in line]
    places = [line.split("|")[2].strip(" `").partition(":")[0] for line in lines]
    assert any((ROOT / place).is_file() for place in places if "/" in place)
    written = {page.stem for page in (ROOT / "benchmarks/logs/profiles").glob("*.md")} - {"README"}
    assert set(profile_paths.PATHS) == written


def test_a_replay_interleaves_sessions_that_share_what_the_trace_says(tmp_path: Path) -> None:
    def session(name: str, *runs: list[int]) -> dict[str, Any]:
        requests = [{"t": 20.0 * n, "in": 0, "out": 64, "runs": run} for n, run in enumerate(runs)]
        fields = {"block_tokens": 64, "tool_tokens": 128, "system_tokens": 0}
        return {"id": name, **fields, "requests": requests}

    sessions = [session("long", [1, 99]), session("a", [1, 4], [1, 3, 9, 2]), session("b", [1, 4])]
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, sessions)).encode()))
    found = read_trace(path, Scale(sessions=2, requests=2, tokens_per_block=3, longest=40))
    assert [(r.session, r.at) for r in found] == [("a", 0.0), ("a", 20.0), ("b", 30.0)]
    first, second, other = (r.prompt for r in found)
    assert (second[:9], other[:6]) == (first[:9], first[:6])
    assert second[9:12] != first[9:12]
    assert other[6:] != first[6:]
    answers = [replay.Answer(0.1 * n, 0.2 * n, 100, 10 * n, "") for n in range(1, 5)]
    table = replay.markdown({"<one>": {"before": answers[:2], "after": answers[2:]}})
    assert "| <one> | all | 4 | 25.0% | 200 ms | 400 ms | 2.0 s |" in table
    ElementTree.fromstring(replay.svg({"<one>": answers, "two": answers[:3]}, 2))


def test_a_system_that_restores_something_else_is_named() -> None:
    told = dict.fromkeys(("seconds", "restored_seconds", "processor_seconds"), 1.0)
    told |= dict.fromkeys(("kept_bytes", "held_bytes", "peak_bytes", "cached"), 96)
    runs = [
        side_by_side.Run(system, phase, 96, {**told, "logits": logits})
        for system, phase, logits in (
            ("live", "turns", "right"),
            ("nothing", "turns", "rounded otherwise"),
            ("mlx-lm", "restart", "wrong"),
        )
    ]
    wrong = ["mlx-lm (after a restart, in the file cache, 96 tokens)"]
    assert side_by_side.differing(runs) == wrong
    assert "Not the logits of the live cache: mlx-lm" in side_by_side.markdown(runs)


def test_every_system_resumes_all_of_the_turn_before(tmp_path: Path) -> None:
    live = side_child.run("live", "turns", 512, tmp_path)
    for system in ("omlx-cache", "mlx-lm"):
        for phase in ("turns", "restart"):
            resumed = side_child.run(system, phase, 512, tmp_path)
            assert (resumed["cached"], resumed["logits"]) == (512, live["logits"])


@pytest.mark.parametrize(
    "command",
    ["codec_device 1 4096", "page_path", "side_by_side --tokens 512 --rounds 1 --dir {place}"],
)
def test_what_only_prints_runs_and_leaves_nothing(command: str, tmp_path: Path) -> None:
    words = f"benchmarks.{command}".format(place=tmp_path).split()
    run = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout
    assert not list(tmp_path.iterdir())
