"""`omlx-cache simulate` in a process of its own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.output import check_output

Cli = Callable[..., Any]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Sessions that come back to their first part after others have used the memory."""
    path = tmp_path / "sessions.jsonl"
    lines = []
    for name in "abcdef":
        requests = [
            {"t": 40.0 * turn, "in": 64 * 30 + 64 * turn, "out": 10, "runs": [1, 30 + turn]}
            for turn in range(12)
        ]
        lines.append(
            {
                "id": name,
                "block_tokens": 64,
                "tool_tokens": 0,
                "system_tokens": 0,
                "requests": requests,
            }
        )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_a_table_says_what_each_combination_serves_and_which_step_pays(
    cli: Cli, trace: Path, tmp_path: Path
) -> None:
    plot = tmp_path / "hits.svg"
    ended = cli(
        "simulate", str(trace), "--hot", "4ktok,16ktok", "--agents", "1,3", "--plot", str(plot)
    )
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("72 requests over ")
    assert lines[2].split()[:3] == ["AGENTS", "MEMORY", "DISK"]
    rows = [line for line in lines if "k tokens" in line and "%" in line and " lru " in line]
    assert [row.split()[0] for row in rows] == ["1", "1", "3", "3"]
    assert "With 16k tokens of memory instead of 4k tokens (policy lru; 3 at a time)" in ended.out
    assert "of computing a day" in ended.out
    assert plot.read_text().startswith("<svg ")
    # Two policies and the optimum, for each number of agents.
    assert plot.read_text().count("<polyline") == 6


def test_the_document_has_a_version_and_the_sums_agree(cli: Cli, trace: Path) -> None:
    ended = cli(
        "simulate", str(trace), "--hot", "4ktok", "--cold", "0,1GiB", "--agents", "3",
        "--write-policy", "through,lazy", "--bytes-per-token", "1024", "--policy", "lru", "--json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    check_output("simulate", document)
    assert document["schema"] == 1
    assert document["requests"] == 72
    assert document["model"]["bytes_per_token"] == 1024
    alone, through, lazy = document["results"]
    assert (alone["write_policy"], alone["written_bytes"]) == (None, 0)
    assert (through["write_policy"], lazy["write_policy"]) == ("through", "lazy")
    for result in document["results"]:
        assert result["hit_tokens"] == result["hot_tokens"] + result["cold_tokens"]
        assert result["hit_tokens"] <= result["optimum_tokens"]
        assert result["share"] == pytest.approx(result["hit_tokens"] / document["tokens_in"])
    assert alone["hit_tokens"] < through["hit_tokens"]
    assert through["hot"] == {"bytes": 4096 * 1024, "tokens": 4096}
    assert through["cold"]["bytes"] == 1 << 30


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    some(
        [
            (("nothing.jsonl",), 1, "nothing.jsonl"),
            (("{bad}",), 1, "line 2"),
            (("{trace}", "--hot", "4parsecs"), 2, "256ktok"),
            (("{trace}", "--policy", "clairvoyant"), 1, "there is no policy 'clairvoyant'"),
            (("{trace}", "--write-policy", "never"), 1, "there is no write policy 'never'"),
            (("{trace}", "--block-size", "100"), 1, "multiple of 64"),
            (("{trace}", "--model", "no/such-model"), 1, "llama-3.1-8b"),
            (("{trace}", "--prefill", "-1"), 2, "not a positive number"),
            (("{trace}", "--block-size", "65536"), 1, "no prompt of the trace has a complete page"),
            ((), 2, "TRACE"),
        ],
        (("nothing.jsonl",), 1, "nothing.jsonl"),
        (("{bad}",), 1, "line 2"),
    ),
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else None,
)
def test_what_cannot_be_simulated_is_said_in_a_line(
    cli: Cli, trace: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(f"{trace.read_text().splitlines()[0]}\n{{\n")
    ended = cli("simulate", *(a.format(trace=trace, bad=bad) for a in arguments))
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_a_models_name_says_what_a_token_takes(cli: Cli, trace: Path) -> None:
    ended = cli("simulate", str(trace), "--model", "Qwen3-8B", "--format", "json")
    assert json.loads(ended.out)["model"] == {"name": "qwen3-8b", "bytes_per_token": 147456}


def test_of_a_model_with_windows_or_states_it_says_what_is_left_out(cli: Cli, trace: Path) -> None:
    ended = cli("simulate", str(trace), "--model", "gpt-oss-20b")
    assert "upper bound" in ended.out
    assert "upper bound" not in cli("simulate", str(trace), "--model", "qwen3-8b").out
