"""The bench of agents that ask at once: its table, its plot, and a small run of it."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.parallel import main
from benchmarks.parallel_report import Round, markdown, svg
from benchmarks.replay_server import Answer

pytestmark = pytest.mark.nightly


def agents(count: int, seconds: float) -> list[Round]:
    """Agents who compute all that they ask."""
    return [Round(2 * seconds, [Answer(seconds, 2 * seconds, 100, 0, "")] * count)]


RUNS = {
    "shared": {1: agents(1, 1.0), 4: [Round(1.1, [Answer(1.0, 1.1, 100, 75, "")] * 4)]},
    "alone": {1: agents(1, 1.0), 4: agents(4, 4.0)},
}


def test_the_table_has_a_row_for_each_count_and_server() -> None:
    table = markdown(RUNS)
    assert "| 1 | shared | 100 | 1.00 s | 1.00 s | 2.00 s | 1.00x |" in table
    assert "| 4 | shared | 100 | 1.00 s | 1.00 s | 1.10 s | 0.55x |" in table
    assert "| 4 | alone | 400 | 4.00 s | 4.00 s | 8.00 s | 4.00x |" in table


def test_the_plot_has_every_agent_and_a_line_for_each_server() -> None:
    plot = ElementTree.fromstring(svg(RUNS))
    assert sum(element.tag.endswith("circle") for element in plot.iter()) == 10
    assert sum(element.tag.endswith("polyline") for element in plot.iter()) == 2


@pytest.mark.nightly
def test_agents_of_real_servers_compute_a_shared_prefix_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--agents", "1", "3", "--system", "1500", "--question", "20", "--rounds", "1"]
    written = tmp_path / "out.md", tmp_path / "out.svg"
    assert main([*flags, "--markdown", str(written[0]), "--svg", str(written[1])]) == 0
    rows = [line.split("|")[1:-1] for line in written[0].read_text().splitlines()[2:]]
    computed = {(int(row[0]), row[1].strip()): int(row[2].replace(",", "")) for row in rows}
    assert computed[1, "shared in flight"] == computed[1, "each for itself"] == 1520
    assert computed[3, "shared in flight"] <= 1520 + 2 * (20 + 64)
    assert written[1].read_text().startswith("<svg")
    assert "0 answers differ" in capsys.readouterr().out
