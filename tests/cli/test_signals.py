import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from .conftest import StartStore

_CLI = [sys.executable, "-m", "omlx_cache_daemon"]


def _watch(environment: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*_CLI, "stats", "--watch", "0.05", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _out(process: "subprocess.Popen[str]") -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def test_watch_repeats_until_it_is_interrupted(
    environment: dict[str, str], start_store: StartStore
) -> None:
    start_store()
    process = _watch(environment, "--format", "json")
    first, second = _out(process).readline(), _out(process).readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert [
        json.loads(line)["stats"]["requests"]["misses"]["absent"] for line in (first, second)
    ] == [7, 7]
    assert (process.returncode, err) == (0, "")


def test_watch_ends_with_69_when_the_store_goes(
    environment: dict[str, str], start_store: StartStore
) -> None:
    store = start_store()
    process = _watch(environment)
    assert _out(process).readline().split()[:2] == ["TIME", "REQ/S"]
    store.kill()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 69
    assert "the store has gone" in err
    assert "Traceback" not in err


def test_a_reader_that_leaves_ends_the_command_quietly(
    environment: dict[str, str], start_store: StartStore
) -> None:
    start_store()
    process = _watch(environment)
    _out(process).readline()
    _out(process).close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 141
    assert err == ""


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
    assert _out(process).readline() == "asking\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


def test_watch_is_a_line_a_look_with_headers_every_20(
    environment: dict[str, str], start_store: StartStore
) -> None:
    start_store()
    process = _watch(environment)
    lines = [_out(process).readline().split() for _ in range(43)]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    headers = [number for number, words in enumerate(lines) if words[0] == "TIME"]
    assert headers == [0, 21, 42]
    assert all(len(words) >= len(lines[0]) for words in lines)


def test_watch_looks_every_second_unless_told_otherwise(
    environment: dict[str, str], start_store: StartStore
) -> None:
    start_store()
    process = subprocess.Popen(
        [*_CLI, "stats", "--watch", "--format", "json"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    first, second = (json.loads(_out(process).readline())["at"] for _ in range(2))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert second - first > 0.9


def test_a_terminal_gets_bold_headers_unless_no_color_is_set(
    environment: dict[str, str], start_store: StartStore
) -> None:
    start_store()
    for no_color, bold in (("", True), ("1", False)):
        ours, theirs = pty.openpty()
        variables = {**environment, "TERM": "xterm", "NO_COLOR": no_color}
        subprocess.run([*_CLI, "ps"], env=variables, stdout=theirs, check=True, timeout=30)
        os.close(theirs)
        shown = os.read(ours, 4096)
        os.close(ours)
        assert (b"\x1b[1m" in shown) is bold


def test_what_goes_wrong_cannot_control_the_terminal(
    environment: dict[str, str], tmp_path: Path
) -> None:
    strange = tmp_path / "a\x1b[31m\x9bb"
    for arguments in (
        ("ls", "--cold-dir", str(strange)),
        ("ps", "--socket", str(strange)),
        ("no\x1b[31m-such",),
        ("stats", "--no\x1b[31m"),
        ("rm", "--to", "0", "--cold-dir", str(strange), "--yes"),
    ):
        ended = subprocess.run(
            [*_CLI, *arguments], env=environment, capture_output=True, text=True, timeout=60
        )
        assert ended.returncode != 0
        assert ended.stderr.startswith("omlx-cache: ")
        assert not {"\x1b", "\x9b"} & set(ended.stdout + ended.stderr), arguments
    strange.mkdir(mode=0o700)
    pruned = subprocess.run(
        [*_CLI, "rm", "--to", "0", "--cold-dir", str(strange), "--yes"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (pruned.returncode, "\x1b" in pruned.stdout) == (0, False)
