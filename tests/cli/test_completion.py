"""Words that a shell completes: asked of the command line as a shell does, and of bash itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.forks import run
from kit.storage import Story, write_pages
from omlx_cache_daemon.cli import command_names

from .conftest import Cli

_ASK_BASH = """
source <(python -m omlx_cache_daemon config --completion bash)
omlx-cache() { python -m omlx_cache_daemon "$@"; }
COMP_LINE="$1"; COMP_POINT=${#COMP_LINE}
_python_argcomplete omlx-cache
printf '%s\\n' "${COMPREPLY[@]}"
"""


def _completed(environment: dict[str, str], folder: Path, line: str) -> set[str]:
    variables = {
        **environment,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "said"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    ended = run(["omlx_cache_daemon"], variables)
    assert ended.returncode == 0, ended.stderr
    return {word.strip() for word in (folder / "said").read_text().splitlines()}


@pytest.mark.usefixtures("forks")
def test_commands_flags_their_values_and_files_are_completed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "trace.jsonl").touch()
    story = Story("a")
    write_pages(tmp_path / "cold", story, 1, label="org/llama")
    digits, key = story.namespace.hex()[:16], story.id(1).key.hex()[:16]
    for line, words in (
        ("omlx-cache ", set(command_names())),
        ("omlx-cache sta", {"stats"}),
        ("omlx-cache export --out", {"--output"}),
        ("omlx-cache ls --format ", {"text", "json"}),
        ("omlx-cache ls --format=j", {"--format=json"}),
        (f"omlx-cache import {tmp_path}/tr", {f"{tmp_path}/trace.jsonl"}),
        ("omlx-cache rm ", {"org/llama", digits}),
        ("omlx-cache ls ", {"org/llama", digits}),
        ("omlx-cache log --events unw", {"unwritten"}),
        ("omlx-cache config --schema ls-p", {"ls-page"}),
        ("omlx-cache quota --pin org/", {"org/llama"}),
        ("omlx-cache ls org/ll", {"org/llama"}),
        (f"omlx-cache ls {digits[:3]}/", {f"{digits[:3]}/{key}"}),
    ):
        assert _completed(environment, tmp_path, line) == words, line


def test_bash_asks_the_command(environment: dict[str, str]) -> None:
    variables = {**environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-c", _ASK_BASH, "bash", "omlx-cache ls --form"]
    ended = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "--format"


def test_a_script_is_printed_for_each_shell(cli: Cli) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "omlx-cache" in cli("config", "--completion", shell).out
    assert cli("config", "--completion", "csh").code == 2
