"""`omlx-cache ps --watch` in a real terminal and in a pipe, over stores in their own processes."""

import re
import signal
import sys

import pytest
from rich.cells import cell_len

from kit.terminals import Terminal, on_terminal

from .conftest import Cli

STORE = """
import sys
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.identity.namespace import Namespace
settings = CacheSettings(min_free_bytes=0, cold_bytes=2**24, hot_bytes=2**24)
with BlockStore(settings, name=sys.argv[1]) as store:
    model = Namespace(bytes(32), {"label": "ann/Tiny\\x1b[31m-1B", "salt": ""})
    asked = store.requests.ask(model, 4000)
    asked.restored(3000, 0, 0.1, "diverged")
    asked.ended(5)
    print("ready", flush=True)
    sys.stdin.read()
"""
_WATCH = [sys.executable, "-m", "omlx_cache_daemon", "ps", "--watch", "0.1"]
_ENTERED, _LEFT, _HIDDEN, _SHOWN = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25l", "\x1b[?25h"


def _variables(environment: dict[str, str], **more: str) -> dict[str, str]:
    return {**environment, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **more}


def _picture(terminal: Terminal) -> list[str]:
    """The lines that a user reads: the last whole picture, without its colours."""
    *_, last, _ = terminal.shown.split("\x1b[H")
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last).splitlines()


def _ends(terminal: Terminal, modes: list[object], code: int) -> None:
    """Assert that the program ends, and leaves the terminal as it was."""
    assert terminal.ended() == code
    assert terminal.modes() == modes
    for begins, ends in ((_ENTERED, _LEFT), (_HIDDEN, _SHOWN)):
        assert terminal.shown.rindex(ends) > terminal.shown.rindex(begins)
    assert "Traceback" not in terminal.shown


@pytest.mark.parametrize(("rows", "columns", "no_color"), [(24, 80, ""), (50, 200, "1")])
def test_a_user_reads_what_stores_do_as_wide_as_the_terminal_is(
    one_store: dict[str, str], rows: int, columns: int, no_color: str
) -> None:
    variables = _variables(one_store, NO_COLOR=no_color)
    with on_terminal(_WATCH, variables, rows=rows, columns=columns) as terminal:
        modes = terminal.modes()
        for _ in range(3):
            terminal.wait_for("q quit")
        lines = _picture(terminal)
        assert len(lines) == rows
        assert max(map(cell_len, lines)) <= columns
        shown = "\n".join(lines)
        assert lines[0].split()[:2] + lines[0].split()[3:5] == [
            "omlx-cache",
            "ps",
            "first,",
            "process",
        ]
        assert "4,000 asked, 3,000 restored (75%)" in shown
        (head,) = [line.split() for line in lines if line.startswith(" TIME")]
        (request,) = [line.split() for line in lines if "diverged" in line]
        assert request[head.index("TOKENS") :][:2] == ["4,000", "3,000"]
        is_wide = columns == 200
        assert ("FIRST" in head, "WHY" in head) == (is_wide, is_wide)
        assert ("the text after that is the same" in shown) is is_wide
        terminal.type("q")
        _ends(terminal, modes, 0)
        styles = re.search(r"\x1b\[(\d+;)*(3[1-7]|1|7)m", terminal.shown)
        assert (styles is None) is bool(no_color)


def test_a_screen_follows_the_terminals_size_and_keys(one_store: dict[str, str]) -> None:
    with on_terminal(_WATCH, _variables(one_store)) as terminal:
        terminal.wait_for("q quit")
        terminal.resize(40, 150)
        terminal.wait_for("NAMESPACE", "the text after that is the same")
        terminal.type("p")
        terminal.wait_for("PAUSED")
        terminal.type("q")
        assert terminal.ended() == 0


@pytest.mark.parametrize(("ends_it", "code"), [("\x03", 0), (signal.SIGTERM, 143)])
def test_a_screen_that_is_ended_from_outside_leaves_the_terminal_as_it_was(
    one_store: dict[str, str], ends_it: str | signal.Signals, code: int
) -> None:
    with on_terminal(_WATCH, _variables(one_store)) as terminal:
        modes = terminal.modes()
        terminal.wait_for("q quit")
        if isinstance(ends_it, str):
            terminal.type(ends_it)
        else:
            terminal.process.send_signal(ends_it)
        _ends(terminal, modes, code)


def test_without_a_terminal_that_can_be_drawn_on_it_is_one_picture(
    cli_process: Cli, one_store: dict[str, str]
) -> None:
    plain = cli_process("ps", "--watch", **one_store)
    assert (plain.code, plain.err, "\x1b" in plain.out) == (0, "", False)
    assert "3,000 restored" in plain.out
    plain_locale = {**one_store, "LC_ALL": "C", "PYTHONUTF8": "0"}
    assert cli_process("ps", "--watch", **plain_locale).code == 0
    assert cli_process("ps", "--watch", "--format", "json", **one_store).code == 2
    with on_terminal(_WATCH, _variables(one_store, TERM="dumb")) as terminal:
        assert terminal.ended() == 0
        assert "3,000 restored" in terminal.shown
        assert "\x1b" not in terminal.shown
