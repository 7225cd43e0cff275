"""`omlx-cache serve --trace`: what the file says and does not say, and what is simulated of it."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kit.tinylm import serve_ours
from omlx_cache.simulate.traces import read_traces

from .conftest import converse


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, forks: None) -> Path:
    return tmp_path_factory.mktemp("t")


@pytest.mark.nightly
def test_a_server_s_requests_are_traced_without_text_and_simulated(
    home: Path, models: dict[str, Path]
) -> None:
    trace = home / "requests.jsonl"
    model = models["dense"]
    server = serve_ours(
        home, "--model", str(model), "--block-size", "16", "--trace", str(trace), forked=True
    )
    try:
        said = [*converse(server, model, "volcanoes"), *converse(server, model, "tides")]
    finally:
        assert server.stop() == 0, server.text()
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600
    text = trace.read_text()
    for word in ("volcano", "tides", "helpful", str(model), model.name, *(t.text for t in said)):
        assert not word.strip() or word not in text
    lines = [json.loads(line) for line in text.splitlines()]
    asked = [line for line in lines if "in" in line]
    assert [line["in"] for line in asked] == [turn.prompt_tokens for turn in said]
    assert len({line["model"] for line in asked}) == 1

    workload = read_traces([trace]).workload(agents=1, block_size=None)
    assert workload.block_size == 16
    assert workload.bytes_per_token > 0
    assert sum(len(request.pages) - request.asked for request in workload.requests) > 0
    done = subprocess.run(
        [sys.executable, "-m", "omlx_cache_daemon", "simulate", str(trace), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (result,) = [r for r in json.loads(done.stdout)["results"] if r["policy"] == "lru"]
    restored = sum(turn.cached_tokens for turn in said)
    # The server restores ends of prompts inside a block too.
    assert 0 < result["hit_tokens"] <= restored <= result["hit_tokens"] + 16 * len(said)
