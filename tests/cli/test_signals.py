import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.children import ended, said

from .conftest import Cli, StartStore

_CLI = [sys.executable, "-m", "omlx_cache_daemon"]


def _watch(environment: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*_CLI, "stats", "--watch", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_watch_looks_every_second_until_it_is_interrupted(
    environment: dict[str, str], start_store: StartStore
) -> None:
    start_store()
    process = _watch(environment, "--format", "json")
    first, second = (json.loads(said(process)) for _ in range(2))
    assert ended(process, signal.SIGINT) == (0, "")
    assert [one["stats"]["requests"]["misses"]["absent"] for one in (first, second)] == [7, 7]
    assert second["at"] - first["at"] > 0.9


def test_watch_ends_with_69_when_the_store_goes(
    environment: dict[str, str], start_store: StartStore
) -> None:
    store = start_store()
    process = _watch(environment, "0.05")
    assert said(process).split()[:2] == ["TIME", "REQ/S"]
    store.kill()
    code, err = ended(process)
    assert (code, "the store has gone" in err, "Traceback" in err) == (69, True, False)


def test_a_reader_that_leaves_ends_the_command_quietly(
    environment: dict[str, str], start_store: StartStore
) -> None:
    start_store()
    process = _watch(environment, "0.05")
    said(process)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(30), err) == (141, "")


@pytest.mark.parametrize("arguments", [("ps",), ("config", "--here"), ("--help",)], ids=" ".join)
def test_a_reader_that_never_came_is_no_traceback(
    environment: dict[str, str], start_store: StartStore, arguments: tuple[str, ...]
) -> None:
    start_store()
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*_CLI, *arguments], env=environment, stdout=writer, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_an_interrupt_while_waiting_for_a_store_is_quiet(
    environment: dict[str, str], start_store: StartStore
) -> None:
    store = start_store()
    os.kill(store.pid, signal.SIGSTOP)
    # Two lines of Python tell the test that the command is at work before it is interrupted.
    code = (
        "import sys, omlx_cache_daemon.client as c\n"
        "from omlx_cache_daemon.cli import main\n"
        "call = c.Client.call\n"
        "def announced(self, op, **args):\n"
        "    print('asking', flush=True)\n"
        "    return call(self, op, **args)\n"
        "c.Client.call = announced\n"
        "sys.exit(main(['why']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert said(process) == "asking\n"
    assert ended(process, signal.SIGINT) == (130, "")


def test_watch_is_a_line_a_look_with_headers_every_20(
    environment: dict[str, str], start_store: StartStore
) -> None:
    start_store()
    process = _watch(environment, "0.05")
    lines = [said(process).split() for _ in range(43)]
    assert ended(process, signal.SIGINT) == (0, "")
    headers = [number for number, words in enumerate(lines) if words[0] == "TIME"]
    assert headers == [0, 21, 42]
    assert all(len(words) >= len(lines[0]) for words in lines)
    assert lines[1][:2] == ["so", "far"]
    assert lines[2][0].count(":") == 2


def test_a_terminal_gets_bold_headers_unless_no_color_is_set(
    environment: dict[str, str], start_store: StartStore
) -> None:
    start_store()
    for no_color, bold in (("", True), ("1", False)):
        ours, theirs = pty.openpty()
        variables = {**environment, "TERM": "xterm", "NO_COLOR": no_color, "COLUMNS": ""}
        subprocess.run([*_CLI, "ps"], env=variables, stdout=theirs, check=True, timeout=30)
        os.close(theirs)
        shown = os.read(ours, 4096)
        os.close(ours)
        assert (b"\x1b[1m" in shown) is bold


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "--cold-dir", "{}"),
        ("ps", "--socket", "{}"),
        ("no\x1b[31m-such",),
        ("stats", "--no\x1b[31m"),
        ("rm", "--to", "0", "--cold-dir", "{}", "--yes"),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_no_name_controls_the_terminal(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], exists: bool
) -> None:
    strange = tmp_path / "a\x1b[31m\x9bb"
    if exists:
        strange.mkdir(mode=0o700)
    result = cli(*(one.format(strange) for one in arguments))
    assert (result.code == 0) is (exists and "--cold-dir" in arguments)
    assert not {"\x1b", "\x9b"} & set(result.out + result.err)
