"""What README and the quick start have a reader type works, with a small model in its place."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.tinylm.process import serve_ours
from kit.tinylm.saved import make_model
from omlx_cache_daemon.cli import command_names

CodeBlock = Callable[[str, str, str], str]
SENTENCE, TIMES = "You are a helpful assistant. ", 100
"""The example's prompt, of which each character is a token here."""
PROMPT_TOKENS = len(SENTENCE) * TIMES


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A directory with a model that mlx-lm loads from `model`."""
    make_model(tmp_path / "model", "qwen3")
    return tmp_path


def test_the_embedding_example_runs_and_a_second_process_restores_the_prompt(
    workplace: Path, code_block: CodeBlock
) -> None:
    program = code_block("README.md", "## Embed it", "python")
    assert len(program.splitlines()) <= 14
    assert program.count('"mlx-community/') == 1
    assert f'"{SENTENCE}" * {TIMES})' in program
    program = re.sub(r'"mlx-community/[^"]*"', '"model"', program)
    first = _run(workplace, "-c", program)
    second = _run(workplace, "-c", program)
    assert first[0] == f"0 of {PROMPT_TOKENS} tokens restored"
    assert second[0] == f"{PROMPT_TOKENS - 1} of {PROMPT_TOKENS} tokens restored"
    assert first[1:] == second[1:], "the answers must be the same"
    assert first[1:] != [""]


def test_the_quick_start_asks_twice_and_looks(workplace: Path, root: Path) -> None:
    text = (root / "docs/quickstart.md").read_text(encoding="utf-8")
    curl = re.search(r"^time curl http://127.0.0.1:8080(\S+) .*? -d ('.+?'$)", text, re.M | re.S)
    assert curl is not None
    body = subprocess.check_output(["sh", "-c", f"printf %s {curl[2]}"])
    looks = re.findall(r"^omlx-cache ([a-z]+) +#", text, re.MULTILINE)
    assert len(looks) >= 6
    server = serve_ours(workplace, "--model", str(workplace / "model"))
    asked = urllib.request.Request(server.url + curl[1], body, {"Content-Type": "application/json"})
    for _ in range(2):
        with urllib.request.urlopen(asked, timeout=60) as answer:
            usage = json.load(answer)["usage"]
    shown = {look: _run(workplace, "-m", "omlx_cache_daemon", look) for look in looks}
    assert server.stop() == 0
    assert usage["prompt_tokens"] > 1000, "a shorter prompt does not show what was saved"
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert all(shown.values()), shown


def _run(workplace: Path, *arguments: str) -> list[str]:
    environment = {
        **os.environ,
        "OMLX_CACHE_COLD_DIR": str(workplace / "cold"),
        "OMLX_CACHE_RUNTIME_DIR": str(workplace / "run"),
        "OMLX_CACHE_MIN_FREE_BYTES": "0",
    }
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=workplace,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_every_command_that_the_readme_names_exists(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|bin/)omlx-cache ([a-z-]+)", text))
    assert {"demo", "config", "stats", "ls"} <= named
    assert named <= set(command_names())


def test_every_make_target_that_the_documents_name_exists(root: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", "docs/design.md", "docs/benchmarks.md"):
        named = set(re.findall(r"`make ([a-z-]+)", (root / document).read_text(encoding="utf-8")))
        assert named <= targets, document
