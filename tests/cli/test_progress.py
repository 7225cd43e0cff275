"""Progress on a real terminal, in a pipe, and when it is cut short."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.terminals import on_terminal

_HALF_DONE = """
import sys
from omlx_cache_daemon.cli import _guarded
from omlx_cache_daemon.progress import Progress
def work():
    with Progress("verifying", 4 * 2**30, unit="bytes") as progress:
        progress.advance(2 * 2**30)
        print("a finding", flush=True)
        sys.stdin.readline()
        progress.advance(2 * 2**30)
    print("done")
    return 0
sys.exit(_guarded(work))
"""
_CURSOR_HIDDEN, _CURSOR_SHOWN = "\x1b[?25l", "\x1b[?25h"


def _program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _variables(environment: dict[str, str], **more: str) -> dict[str, str]:
    return {**environment, "TERM": "xterm-256color", **more}


def test_a_terminal_shows_a_bar_with_what_is_done_of_how_much(environment: dict[str, str]) -> None:
    with on_terminal(_program(_HALF_DONE), _variables(environment)) as terminal:
        terminal.wait_for("verifying", "2 GiB of 4 GiB")
        terminal.type("\n")
        assert terminal.ended() == 0
        assert "4 GiB of 4 GiB" in terminal.shown
        assert terminal.shown.rindex(_CURSOR_SHOWN) > terminal.shown.rindex(_CURSOR_HIDDEN)


def test_the_bar_has_no_colours_where_none_are_wanted(environment: dict[str, str]) -> None:
    for no_color, coloured in (("", True), ("1", False)):
        variables = _variables(environment, NO_COLOR=no_color)
        with on_terminal(_program(_HALF_DONE), variables) as terminal:
            terminal.wait_for("2 GiB of 4 GiB")
            terminal.type("\n")
            assert terminal.ended() == 0
            assert ("\x1b[38;" in terminal.shown) is coloured


def test_a_dumb_terminal_gets_lines_and_no_escape_sequence(environment: dict[str, str]) -> None:
    variables = _variables(environment, TERM="dumb")
    with on_terminal(_program(_HALF_DONE), variables) as terminal:
        terminal.type("\n")
        assert terminal.ended() == 0
        assert "verifying: 50 % (2 GiB of 4 GiB)" in terminal.shown
        assert "\x1b" not in terminal.shown


def test_what_a_command_prints_goes_where_it_goes_without_a_bar(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with (tmp_path / "out").open("wb") as out:
        variables = _variables(environment)
        with on_terminal(_program(_HALF_DONE), variables, stdout=out.fileno()) as terminal:
            terminal.wait_for("2 GiB of 4 GiB")
            terminal.type("\n")
            assert terminal.ended() == 0
    assert (tmp_path / "out").read_text() == "a finding\ndone\n"


@pytest.mark.parametrize(("ends_it", "code"), [("\x03", 130), (signal.SIGTERM, 143)])
def test_a_bar_that_is_cut_short_leaves_a_cursor_and_a_line_of_its_own(
    environment: dict[str, str], ends_it: str | signal.Signals, code: int
) -> None:
    with on_terminal(_program(_HALF_DONE), _variables(environment)) as terminal:
        terminal.wait_for("2 GiB of 4 GiB")
        if isinstance(ends_it, str):
            terminal.type(ends_it)
        else:
            terminal.process.send_signal(ends_it)
        assert terminal.ended() == code
        assert terminal.shown.rindex(_CURSOR_SHOWN) > terminal.shown.rindex(_CURSOR_HIDDEN)
        assert "Traceback" not in terminal.shown
        assert terminal.shown.rstrip(_CURSOR_SHOWN).endswith("\n")


def _in_a_pipe(environment: dict[str, str], code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        _program(code), env=environment, capture_output=True, text=True, timeout=60, check=True
    )


def test_a_pipe_gets_a_line_for_each_tenth(environment: dict[str, str]) -> None:
    code = (
        "from omlx_cache_daemon.progress import Progress\n"
        "with Progress('warming', 1000, unit='prompts') as progress:\n"
        "    for _ in range(1000):\n"
        "        progress.advance()\n"
    )
    ended = _in_a_pipe(environment, code)
    lines = ended.stderr.splitlines()
    assert (len(lines), ended.stdout) == (10, "")
    assert lines[0] == "warming: 10 % (100 of 1,000 prompts)"
    assert lines[-1] == "warming: 100 % (1,000 of 1,000 prompts)"


def test_nothing_is_told_beside_a_json_document_nor_is_rich_imported_for_lines(
    environment: dict[str, str],
) -> None:
    code = (
        "import sys\n"
        "from omlx_cache_daemon.progress import Progress\n"
        "for shown in (True, False):\n"
        "    with Progress('moving', 1, unit='pages', shown=shown) as progress:\n"
        "        progress.advance()\n"
        "assert 'rich' not in sys.modules\n"
    )
    assert _in_a_pipe(environment, code).stderr == "moving: 100 % (1 of 1 pages)\n"


def test_a_reader_of_the_progress_that_has_gone_does_not_end_the_work(
    environment: dict[str, str],
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = (
        "from omlx_cache_daemon.progress import Progress\n"
        "with Progress('moving', 10, unit='pages') as progress:\n"
        "    for _ in range(10):\n"
        "        progress.advance()\n"
        "print('moved')\n"
    )
    ended = subprocess.run(
        _program(code), env=environment, stdout=subprocess.PIPE, stderr=writer, timeout=60
    )
    os.close(writer)
    assert ended.stdout == b"moved\n"
