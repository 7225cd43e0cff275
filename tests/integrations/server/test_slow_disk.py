"""A server whose disk is slower than its model computes, says so, and reads again later."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.tinylm import Server, serve_ours
from kit.tinylm.slow_disk import make_slow_disk_model
from omlx_cache.restore.gate import PROBE_EVERY, READS

from .conftest import SYSTEM, ask

SECONDS = 0.5
"""For a page: far more than this model takes for the whole prompt."""


def told(home: Path, command: str, *arguments: str) -> str:
    """What a command says about the server that runs."""
    done = subprocess.run(
        [sys.executable, "-m", "omlx_cache_daemon", command, *arguments],
        env={
            **os.environ,
            "OMLX_CACHE_RUNTIME_DIR": str(home / "run"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def about(topic: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{topic}: {SYSTEM * 3}"}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_slow_disk_model(tmp_path / "model", tmp_path / "slow", SECONDS)


def start(home: Path, model: Path, **variables: str) -> Server:
    arguments = ("--model", str(model), "--trust-remote-code")
    return serve_ours(home, *arguments, OMLX_CACHE_HOT_BYTES="0", **variables)


def asked(server: Server, model: Path, topic: str) -> Any:
    return ask(server, model, about(topic), max_tokens=2)


@pytest.mark.nightly
def test_what_takes_longer_to_read_is_computed_and_why_says_so(tmp_path: Path, model: Path) -> None:
    home = tmp_path / "home"
    server = start(home, model)
    expected = asked(server, model, "Slow disks").text
    assert server.stop() == 0
    server = start(home, model)
    try:
        for topic in range(5):
            asked(server, model, f"{topic} other things")
        (tmp_path / "slow").touch()
        for _ in range(READS):
            assert asked(server, model, "Slow disks").cached_tokens > 0
        turn = asked(server, model, "Slow disks")
        assert (turn.text, turn.cached_tokens) == (expected, 0)
        said = told(home, "why")
        assert "to read that takes longer than to compute it" in said
        assert re.search(r"\d+ tokens, about \S+ s to read and \S+ s to compute", said)
        stats = json.loads(told(home, "stats", "--format", "json"))
        assert '"slower_than_computing": 1' in json.dumps(stats)
        (tmp_path / "slow").unlink()
        found = [asked(server, model, "Slow disks").cached_tokens for _ in range(PROBE_EVERY + 1)]
        assert found[: PROBE_EVERY - 2] == [0] * (PROBE_EVERY - 2)
        assert min(found[PROBE_EVERY - 2 :]) > 0
    finally:
        assert server.stop() == 0
    assert re.search(r"\(slower_than_computing: [\d,]+ tokens, about ", server.text())
