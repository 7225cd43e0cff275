"""The soak's verdicts, and the traces that it reads."""

import gzip
import json
from dataclasses import fields
from pathlib import Path

import pytest

from chaos.soak.run import Soak
from chaos.soak.samples import Sample, is_flat
from chaos.soak.traces import VARIABLE, find_traces, requests_of


def _samples(values: list[float]) -> list[Sample]:
    names = [field.name for field in fields(Sample)]
    return [
        Sample(**{**dict.fromkeys(names, 0), "seconds": 60.0 * i, "rss_bytes": int(value)})
        for i, value in enumerate(values)
    ]


def test_a_warm_up_and_an_outlier_are_flat_and_a_slope_is_not() -> None:
    mib = 2**20
    settled = [100 * mib] * 5 + [200 * mib] * 55
    assert is_flat(_samples(settled), "rss_bytes")
    settled[40] = 900 * mib
    assert is_flat(_samples(settled), "rss_bytes")
    leaking = [200 * mib + minute * mib for minute in range(60)]
    assert not is_flat(_samples(leaking), "rss_bytes")


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    agent = {
        "id": "a", "block_tokens": 64, "tool_tokens": 640, "system_tokens": 64,
        "requests": [
            {"t": 0.0, "in": 2560, "out": 64, "runs": [1, 40]},
            {"t": 9.0, "in": 5120, "out": 64, "runs": [1, 40, 50, 40]},
        ],
    }  # fmt: skip
    chat = {"timestamp": 0, "input_length": 1500, "output_length": 3, "hash_ids": [0, 1, 7]}
    for name, lines in (("agents", [agent]), ("chats", [chat, chat])):
        with gzip.open(tmp_path / f"{name}.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return tmp_path


def test_traces_keep_which_requests_share_a_prefix(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(traces))
    agents, chats = map(requests_of, find_traces([]))
    assert [len(request.tokens) for request in agents] == [40, 80]
    assert agents[1].tokens[:40] == agents[0].tokens
    assert [len(request.tokens) for request in chats] == [48, 48]
    assert chats[0].tokens == chats[1].tokens


def test_a_short_soak_restores_and_samples(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.nice", lambda _: 0)
    soak = Soak(find_traces([traces]), 1, tmp_path, share=1.0, every=0)
    # Too short to tell whether memory is flat.
    text, _ = soak.run(1.0, tmp_path / "samples.csv")
    assert "0 wrong restores, 0 samples over a budget" in text
    assert len((tmp_path / "samples.csv").read_text().splitlines()) > 1
