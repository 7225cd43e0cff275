"""The bench of how work grows: its tables and plots, and a small run of it."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.growth import main
from benchmarks.growth_plot import svg
from benchmarks.growth_report import by_series, markdown
from benchmarks.growth_rows import GrowthRow, in_words, lengths, steepness
from omlx_cache.tools.bench.rows import Row

pytestmark = pytest.mark.nightly


def grown(what: str, power: float, counts: list[int]) -> list[GrowthRow]:
    """Rows that take a microsecond times a power of their length, and a bound of half as much."""
    times = [1e-6 * count**power for count in counts]
    pairs = zip(counts, times, strict=True)
    return [GrowthRow(count, Row(what, time, "the bound", time / 2)) for count, time in pairs]


def test_lengths_are_fourfold_and_none_is_greater_than_what_is_asked_for() -> None:
    assert lengths(1024, 262_144) == [1024, 4096, 16_384, 65_536, 262_144]
    assert lengths(1024, 5000) == [1024, 4096]


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_steepness_is_the_power_of_the_length(power: float) -> None:
    assert steepness(grown("x", power, [16, 64, 256, 1024])) == pytest.approx(power)


def test_what_a_short_call_costs_by_itself_does_not_make_growth_look_flat() -> None:
    flat = grown("x", 0.0, [1, 4, 16])
    assert steepness([*flat, *grown("x", 1.0, [64, 256, 1024])]) == pytest.approx(1.0)


def test_growth_is_said_in_words() -> None:
    told = [in_words(power) for power in (None, 0.1, 0.5, 1.0, 1.5)]
    assert told == ["one length", "does not grow", "less than linear", "linear", "more than linear"]


def test_the_table_has_a_column_for_each_length_and_says_what_grows() -> None:
    rows = [*grown("restore", 1.0, [1024, 4096]), *grown("look-up", 0.0, [1024, 4096])]
    table = markdown(by_series(rows), by_series(rows), {"hot": 668.6}).splitlines()
    assert table[0] == "| what | beside | 1,024 tokens | 4,096 tokens | grows |"
    assert table[2] == (
        "| restore | the bound | 1.02 ms (0.50) | 4.10 ms (0.50) | linear, power 1.00 |"
    )
    assert "does not grow, power 0.00" in table[3]
    assert "Memory of what is known of a page, hot tier: 669 bytes." in table


def test_the_plot_has_a_dot_a_length_and_two_lines_for_each_thing_measured() -> None:
    series = by_series([*grown("restore", 1.0, [1024, 4096]), *grown("look-up", 0.0, [1024, 4096])])
    plot = ElementTree.fromstring(svg(series, "tokens"))
    assert sum(element.tag.endswith("circle") for element in plot.iter()) == 4
    assert sum(element.tag.endswith("polyline") for element in plot.iter()) == 4
    words = {element.text for element in plot.iter() if element.tag.endswith("text")}
    assert {"restore", "look-up", "1k", "4k", "10 ms"} <= words


@pytest.mark.nightly
def test_a_small_run_measures_every_series_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bed").mkdir()
    written = tmp_path / "out.md"
    sizes = ["--tokens", "1024", "--pages", "4096", "--runs", "1"]
    places = ["--dir", str(tmp_path / "bed"), "--markdown", str(written), "--svg", str(tmp_path)]
    assert main([*sizes, *places]) == 0
    told = written.read_text()
    assert told == capsys.readouterr().out
    rows = {line.split("|")[1].strip(): line for line in told.splitlines() if "(" in line}
    assert set(rows) == {
        "commit",
        "restore, hot",
        "restore, cold",
        "look-up",
        "start-up",
        "look-up, cold",
        "eviction of a page, cold",
        "look-up, hot",
        "eviction of a page, hot",
    }
    assert rows["start-up"].count("(") == 2
    assert told.count("Memory of what is known of a page") == 2
    for name in ("growth-tokens.svg", "growth-pages.svg"):
        assert (tmp_path / name).read_text().startswith("<svg")
    assert not list((tmp_path / "bed").iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--tokens", "10"),
        ("--pages", "many"),
        ("--runs", "0"),
        ("--svg", "/no/such/folder"),
        ("--markdown", "/no/such/folder/out.md"),
        ("--dir", "/no/such/folder"),
    ],
)
def test_what_cannot_be_measured_or_written_is_refused_before_anything_is_measured(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert arguments[0] in told
    assert " ..." not in told.splitlines()[-1]
