"""The replay's parts that need no server: requests from a trace, the table and the plot."""

import gzip
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.replay_report import markdown, percentile, svg
from benchmarks.replay_server import Answer
from benchmarks.replay_trace import Scale, read_trace

pytestmark = pytest.mark.nightly

SCALE = Scale(sessions=2, requests=2, tokens_per_block=3, longest=40)


def session(name: str, tools: int, *runs: list[int]) -> dict[str, object]:
    requests = [
        {"t": 20.0 * index, "in": 0, "out": 64 * (index + 1), "runs": run}
        for index, run in enumerate(runs)
    ]
    return {
        "id": name,
        "block_tokens": 64,
        "tool_tokens": tools,
        "system_tokens": 0,
        "requests": requests,
    }


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    sessions = [
        session("too long", 64, [1, 99]),
        session("a", 128, [1, 4], [1, 3, 9, 2], [1, 1]),
        session("b", 128, [1, 4], [1, 50]),
    ]
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, sessions)).encode()))
    return path


def test_sessions_interleave_and_share_what_the_trace_says(trace: Path) -> None:
    requests = read_trace(trace, SCALE)
    assert [(r.session, r.at) for r in requests] == [("a", 0.0), ("a", 20.0), ("b", 30.0)]
    first, second, other = (r.prompt for r in requests)
    assert [len(first), len(second)] == [12, 15]
    assert second[:9] == first[:9]
    assert second[9:12] != first[9:12]
    # Two blocks of tools are common to both sessions; what follows is each one's own.
    assert other[:6] == first[:6]
    assert other[6:] != first[6:]
    assert [r.max_tokens for r in requests] == [3, 6, 3]


def test_a_percentile_is_one_of_the_values() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.2, 0.5, 0.95, 1.0)] == [1.0, 3.0, 5.0, 5.0]
    assert percentile([7.0], 0.5) == 7.0


def test_the_table_and_the_plot_have_every_request() -> None:
    answers = [Answer(0.1 * n, 0.2 * n, 100, 10 * n, "") for n in range(1, 5)]
    runs = {"one <server>": {"before": answers[:2], "after": answers[2:]}}
    table = markdown(runs)
    assert "| one <server> | all | 4 | 25.0% | 200 ms | 400 ms | 2.0 s |" in table
    plot = ElementTree.fromstring(svg({"one <server>": answers, "two": answers[:3]}, 2))
    assert sum(element.tag.endswith("circle") for element in plot.iter()) == 7
