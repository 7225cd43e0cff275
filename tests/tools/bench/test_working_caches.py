"""The benchmark module at its smallest size: every section reports, and the report is data."""

import json
from pathlib import Path

import pytest

from omlx_cache.tools.bench import caches_growth, caches_reads, working_caches


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches_growth, "LAYERS", 2)
    monkeypatch.setattr(caches_reads, "LAYERS", 2)
    monkeypatch.setattr(caches_growth, "DECODE", 20)
    monkeypatch.setattr(caches_growth, "STEPS_BEFORE", 2)
    monkeypatch.setattr(caches_growth, "STEPS_AFTER", 2)
    monkeypatch.setattr(caches_growth, "WINDOW", 128)
    monkeypatch.setattr(caches_growth, "FORWARD_WINDOW", 32)
    monkeypatch.setattr(caches_reads, "BUFFER", 2_048)
    monkeypatch.setattr(caches_reads, "USED", 300)
    monkeypatch.setattr(caches_reads, "REPEATS", {1: 1, 16: 1})
    monkeypatch.setattr(caches_reads, "OVERSIZE", (1.0, 2.0))


def figures(report: working_caches.Report, section: str, variant: str) -> dict[str, float]:
    return dict(
        next(r for r in report.rows if (r.section, r.variant) == (section, variant)).figures
    )


@pytest.mark.usefixtures("tiny")
def test_a_run_measures_every_section_and_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    report = working_caches.run((2_048,), path)
    written = json.loads(path.read_text())
    assert len(written["rows"]) == len(report.rows)
    grown = figures(report, "update loop", "step 256 (mlx-lm)")
    planned = figures(report, "update loop", "preallocated, hint exact")
    assert planned["peak MB"] < grown["peak MB"]
    assert planned["active MB"] == pytest.approx(planned["data MB"], rel=0.01)
    held = {
        variant: figures(report, "slack", variant)["really held MB"]
        for variant in ("as allocated", "slice and eval", "trim_to_offset")
    }
    assert held["slice and eval"] == held["as allocated"]
    assert held["trim_to_offset"] == pytest.approx(held["as allocated"] * 300 / 2_048, rel=0.01)
    windows = [
        figures(report, "rotating", f"{name}, long prompt")["retained MB"]
        for name in ("window allocated once", "mlx-lm")
    ]
    assert windows[0] < windows[1]
    text = working_caches.to_markdown(report)
    assert all(f"**{row.section}**" in text for row in report.rows)


@pytest.mark.parametrize("arguments", [["--tokens", "100"], ["--sections", "nothing"]])
def test_a_wrong_option_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        working_caches.main(arguments)
    assert caught.value.code == 2
