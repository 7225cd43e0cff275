"""`omlx-cache why` against a server: text on request, and none in the log."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.tinylm import serve_ours

from .conftest import SYSTEM, ask


def why(home: Path, *arguments: str) -> str:
    """What `omlx-cache why` says about the server that runs."""
    done = subprocess.run(
        [sys.executable, "-m", "omlx_cache_daemon", "why", *arguments],
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


def why_of(home: Path, *arguments: str) -> Any:
    return json.loads(why(home, *arguments, "--format", "json"))["requests"]


def dated(day: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": f"Today is 2026-11-{day}. {SYSTEM}"},
        {"role": "user", "content": "What now?"},
    ]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("w")


def test_why_shows_the_place_in_words_and_the_log_has_no_text(
    home: Path, models: dict[str, Path], forks: None
) -> None:
    server = serve_ours(home, "--model", str(models["dense"]), forked=True)
    try:
        assert why(home) == "no request yet\n"
        for day in (20, 21):
            ask(server, models["dense"], dated(day))
        said = why(home)
        assert "request 2" in said
        assert "parts from the prompt of" in said
        assert "(request 1) at token" in said
        assert "Today is 2026-11-20" in said
        assert "Today is 2026-11-21" in said
        assert "what helps: keep what changes" in said
        (told,) = why_of(home)
        assert told["reason"] == "diverged"
        assert told["model"] == "dense"
        assert told["explanation"]["here_text"] != told["explanation"]["there_text"]
        assert [one["number"] for one in why_of(home, "--last", "5")] == [1, 2]
        assert [one["reason"] for one in why_of(home, "1")] == ["new_text"]
    finally:
        assert server.stop() == 0
    log = server.text()
    assert "request 2: " in log
    assert "(diverged: parts from request 1 at token " in log
    assert "Today is" not in log
