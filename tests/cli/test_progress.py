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
from omlx_cache_daemon.process import Progress
def work():
    with Progress("verifying", 4 * 2**30, unit="bytes") as progress:
        progress.update(progress.done + 2 * 2**30)
        print("a finding", flush=True)
        sys.stdin.readline()
        progress.update(progress.done + 2 * 2**30)
    print("done")
    return 0
sys.exit(_guarded(work))
"""
_PIPED = """
import sys
from omlx_cache_daemon.process import Progress
for shown in (True, False):
    with Progress("warming", 1000, unit="prompts", shown=shown) as progress:
        for _ in range(1000):
            progress.update(progress.done + 1)
assert "rich" not in sys.modules
print("done")
"""
_CURSOR_HIDDEN, _CURSOR_SHOWN = "\x1b[?25l", "\x1b[?25h"


@pytest.mark.parametrize(
    "variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["plain", "no color", "dumb"]
)
def test_a_terminal_shows_what_is_done_and_a_file_what_is_printed(
    environment: dict[str, str], tmp_path: Path, variables: dict[str, str]
) -> None:
    is_dumb = "TERM" in variables
    everything = {**environment, "TERM": "xterm-256color", **variables}
    command = [sys.executable, "-c", _HALF_DONE]
    with (
        (tmp_path / "out").open("wb") as out,
        on_terminal(command, everything, stdout=out.fileno()) as terminal,
    ):
        terminal.wait_for("verifying", "2 GiB of 4 GiB")
        terminal.type("\n")
        assert terminal.ended() == 0
        assert "4 GiB of 4 GiB" in terminal.shown
        assert ("\x1b[38;" in terminal.shown) is (not variables)
        assert ("\x1b" in terminal.shown) is not is_dumb
        assert ("verifying: 50 % (2 GiB of 4 GiB)" in terminal.shown) is is_dumb
        if not is_dumb:
            assert terminal.shown.rindex(_CURSOR_SHOWN) > terminal.shown.rindex(_CURSOR_HIDDEN)
    assert (tmp_path / "out").read_text() == "a finding\ndone\n"


@pytest.mark.parametrize(("ends_it", "code"), [("\x03", 130), (signal.SIGTERM, 143)])
def test_a_bar_that_is_cut_short_leaves_a_cursor_and_a_line_of_its_own(
    environment: dict[str, str], ends_it: str | signal.Signals, code: int
) -> None:
    variables = {**environment, "TERM": "xterm-256color"}
    with on_terminal([sys.executable, "-c", _HALF_DONE], variables) as terminal:
        terminal.wait_for("2 GiB of 4 GiB")
        if isinstance(ends_it, str):
            terminal.type(ends_it)
        else:
            terminal.process.send_signal(ends_it)
        assert terminal.ended() == code
        assert terminal.shown.rindex(_CURSOR_SHOWN) > terminal.shown.rindex(_CURSOR_HIDDEN)
        assert "Traceback" not in terminal.shown
        assert terminal.shown.rstrip(_CURSOR_SHOWN).endswith("\n")


@pytest.mark.parametrize("read", [True, False])
def test_a_pipe_gets_a_line_for_each_tenth_and_need_not_be_read(
    environment: dict[str, str], read: bool
) -> None:
    """Nothing is told beside a JSON document, and rich is not imported for lines."""
    reader, writer = os.pipe()
    if not read:
        os.close(reader)
    command = [sys.executable, "-c", _PIPED]
    ended = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=writer, timeout=60, check=False
    )
    os.close(writer)
    assert ended.stdout == b"done\n"
    if read:
        with open(reader) as told:
            lines = told.read().splitlines()
        assert (len(lines), lines[0]) == (10, "warming: 10 % (100 of 1,000 prompts)")
        assert lines[-1] == "warming: 100 % (1,000 of 1,000 prompts)"
