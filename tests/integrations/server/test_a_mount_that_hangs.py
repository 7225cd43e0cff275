"""A server whose cold directory hangs: it answers, and one signal ends it."""

import time
import urllib.request
from pathlib import Path

import pytest

from kit.storage.hanging import HangingCalls, needs_compiler
from kit.tinylm import serve_ours

from .conftest import SYSTEM, ask

pytestmark = needs_compiler
SLACK_SECONDS = 20.0
"""What a loaded machine may take beyond a deadline; without one it would be for ever."""


def _about(topic: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{topic}: {SYSTEM * 3}"}]


@pytest.mark.nightly
def test_prompts_and_metrics_are_answered_and_one_signal_ends_it(
    models: dict[str, Path], tmp_path: Path
) -> None:
    calls = HangingCalls(tmp_path, "hung-directory")
    server = serve_ours(
        tmp_path / "home",
        "--model",
        str(models["dense"]),
        OMLX_CACHE_COLD_DIR=str(tmp_path / "hung-directory"),
        OMLX_CACHE_STATUS="on",
        **calls.environment,
    )
    try:
        ask(server, models["dense"], _about("before"))
        calls.hang()
        for topic in ("before", "another", "a third"):
            assert ask(server, models["dense"], _about(topic)).text
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=SLACK_SECONDS) as answer:
            assert b"omlx_cache_" in answer.read()
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 10 + SLACK_SECONDS
    finally:
        server.kill()
