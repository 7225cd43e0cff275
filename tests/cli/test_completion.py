"""Completion scripts in the shells that they are for; each word is asked of the shell itself."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from pkgutil import iter_modules

import pytest

from kit.terminals import on_terminal
from omlx_cache_daemon import commands
from omlx_cache_daemon.cli import main

_NAMES = {module.name.replace("_", "-") for module in iter_modules(commands.__path__)}
Script = Callable[[str], Path]

_ASK_BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_omlx_cache
for word in "${COMPREPLY[@]}"; do echo "$word"; done
"""


def _needs(shell: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} here: apt-get install {shell}, or brew install {shell}")
    return path


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Script:
    def write(shell: str) -> Path:
        assert main(["completion", shell]) == 0
        path = tmp_path / f"completion.{shell}"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        return path

    return write


def _bash(script: Path, *words: str) -> set[str]:
    command = ["bash", "--norc", "-c", _ASK_BASH, "bash", str(script), *words]
    ended = subprocess.run(
        command, cwd=script.parent, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stderr == ""
    return set(ended.stdout.splitlines())


def test_bash_completes_commands_flags_values_and_files(script: Script) -> None:
    _needs("bash")
    path = script("bash")
    (path.parent / "with space").mkdir()
    (path.parent / "trace.jsonl").touch()
    assert _bash(path, "omlx-cache", "sta") == {"stats"}
    assert _bash(path, "omlx-cache", "") >= _NAMES
    assert _bash(path, "omlx-cache", "stats", "--wa") == {"--watch"}
    assert _bash(path, "omlx-cache", "stats", "--format", "") == {"text", "json"}
    # bash takes --format=j apart.
    assert _bash(path, "omlx-cache", "stats", "--format", "=", "j") == {"json"}
    assert _bash(path, "omlx-cache", "stats", "--format", "=") == {"text", "json"}
    assert _bash(path, "omlx-cache", "ls", "--cold-dir", "wi") == {"with space"}
    assert _bash(path, "omlx-cache", "simulate", "tr") == {"trace.jsonl"}
    assert _bash(path, "omlx-cache", "stats", "--pid", "") == set()
    assert _bash(path, "omlx-cache", "completion", "") == {"bash", "zsh", "fish"}
    assert _bash(path, "omlx-cache", "no-such-command", "") == set()


def test_fish_completes_commands_flags_values_and_files(script: Script) -> None:
    fish = _needs("fish")
    path = script("fish")
    (path.parent / "trace.jsonl").touch()

    def asked(line: str) -> set[str]:
        code = f"source {path}; complete -C '{line}'"
        ended = subprocess.run(
            [fish, "-N", "-c", code],
            cwd=path.parent,
            env={"HOME": str(path.parent), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert ended.stderr == ""
        return {row.partition("\t")[0] for row in ended.stdout.splitlines()}

    assert asked("omlx-cache sta") == {"stats"}
    assert asked("omlx-cache ") >= _NAMES
    assert asked("omlx-cache stats --wa") == {"--watch"}
    assert asked("omlx-cache stats --format ") == {"text", "json"}
    assert "trace.jsonl" in asked("omlx-cache simulate tr")
    assert asked("omlx-cache completion ") == {"bash", "zsh", "fish"}


def test_zsh_completes_commands_flags_values_and_files(script: Script) -> None:
    zsh = _needs("zsh")
    path = script("zsh")
    (path.parent / "trace.jsonl").touch()
    variables = {"HOME": str(path.parent), "PATH": "/usr/bin:/bin", "PS1": "> ", "TERM": "dumb"}
    with on_terminal([zsh, "-f", "-i"], variables) as terminal:
        terminal.type(f"cd {path.parent}; autoload -U compinit; compinit -D -u; source {path}\n")
        terminal.type("omlx-cache() { print -l -- did \"$@\" over; }; print rea''dy\n")
        terminal.wait_for("ready")
        for keys, words in (
            ("sta\t\n", "did\r\nstats\r\nover"),
            ("stats --wa\t\n", "did\r\nstats\r\n--watch\r\nover"),
            ("stats --format j\t\n", "did\r\nstats\r\n--format\r\njson\r\nover"),
            ("simulate tr\t\n", "did\r\nsimulate\r\ntrace.jsonl\r\nover"),
            ("completion z\t\n", "did\r\ncompletion\r\nzsh\r\nover"),
        ):
            terminal.type(f"omlx-cache {keys}")
            terminal.wait_for(words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_that_is_there_reads_its_script(script: Script, shell: str) -> None:
    subprocess.run([_needs(shell), "-n", str(script(shell))], check=True, timeout=60)


def test_a_word_is_completed_without_a_program(script: Script) -> None:
    for shell in ("bash", "zsh", "fish"):
        text = script(shell).read_text(encoding="utf-8")
        assert "$(omlx-cache" not in text
        assert "python" not in text.lower()
