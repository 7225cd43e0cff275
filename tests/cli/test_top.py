"""`omlx-cache top` in a real terminal and in a pipe, over real stores in processes of their own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import pytest

from kit.embedded import embedded_stores
from kit.terminals import Terminal, on_terminal

from .conftest import Cli

_EMBED = """
import sys
from omlx_cache import BlockStore, CacheSettings
settings = CacheSettings(min_free_bytes=0, cold_bytes=2**24, hot_bytes=2**24)
with BlockStore(settings, name=sys.argv[1]) as store:
    asked = store.requests.ask("ab" * 32, {"label": "ann/Tiny\\x1b[31m-1B", "salt": ""}, 4000)
    asked.restored(3000, 0, 0.1, "diverged")
    asked.ended(5)
    print("ready", flush=True)
    sys.stdin.read()
"""
_TOP = [sys.executable, "-m", "omlx_cache_daemon", "top", "--every", "0.1"]
_ENTERED, _LEFT, _CURSOR_SHOWN = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"

Process = subprocess.Popen[str]


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[[str], Process]]:
    with embedded_stores(_EMBED) as run:
        yield lambda name: run(environment, name)


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a command line that sees one store, which outlives a test."""
    runtime = tempfile.mkdtemp(prefix=f"oc-{os.getpid()}-", dir="/tmp")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMLX_")}
    variables = {
        **kept,
        "OMLX_CACHE_RUNTIME_DIR": runtime,
        "OMLX_CACHE_COLD_DIR": str(tmp_path_factory.mktemp("top") / "cold"),
        "NO_COLOR": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with embedded_stores(_EMBED) as run:
        run(variables, "first")
        yield variables
    shutil.rmtree(runtime)


def _variables(environment: dict[str, str], **more: str) -> dict[str, str]:
    return {**environment, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **more}


def _left_as_it_was(terminal: Terminal, modes: list[object]) -> None:
    assert terminal.modes() == modes
    assert terminal.shown.rindex(_LEFT) > terminal.shown.rindex(_ENTERED)
    assert _CURSOR_SHOWN in terminal.shown[terminal.shown.rindex("\x1b[?25l") :]
    assert "Traceback" not in terminal.shown


def test_a_screen_follows_the_terminal_s_size_and_leaves_it_as_it_was(
    one_store: dict[str, str],
) -> None:
    with on_terminal(_TOP, _variables(one_store)) as terminal:
        modes = terminal.modes()
        terminal.wait_for(_ENTERED, "first, process", "4,000 asked", "3,000 restored (75 %)")
        terminal.wait_for("diverged", "q quit")
        # Columns that 80 cells have no room for.
        terminal.resize(40, 130)
        terminal.wait_for("NAMESPACE", "abababababab")
        terminal.type("?")
        terminal.wait_for("1-9        show one store")
        terminal.type("q")
        assert terminal.ended() == 0
        _left_as_it_was(terminal, modes)


@pytest.mark.parametrize(("ends_it", "code"), [("\x03", 0), (signal.SIGTERM, 143)])
def test_a_screen_that_is_ended_from_outside_leaves_the_terminal_as_it_was(
    one_store: dict[str, str],
    ends_it: str | signal.Signals,
    code: int,
) -> None:
    with on_terminal(_TOP, _variables(one_store)) as terminal:
        modes = terminal.modes()
        terminal.wait_for("q quit")
        if isinstance(ends_it, str):
            terminal.type(ends_it)
        else:
            terminal.process.send_signal(ends_it)
        assert terminal.ended() == code
        _left_as_it_was(terminal, modes)


@pytest.mark.nightly
def test_a_store_that_goes_is_said_to_have_and_the_next_one_is_shown(
    environment: dict[str, str], start: Callable[[str], Process]
) -> None:
    first = start("first")
    with on_terminal(_TOP, _variables(environment)) as terminal:
        terminal.wait_for("first, process", "q quit")
        first.kill()
        first.wait(30)
        terminal.wait_for("waiting for one", f"process {first.pid}, first, has gone")
        start("second")
        terminal.wait_for("second, process", "diverged")
        terminal.type("q")
        assert terminal.ended() == 0


@pytest.mark.nightly
def test_one_of_several_is_chosen_by_its_number_and_a_stopped_one_holds_up_nobody(
    environment: dict[str, str], start: Callable[[str], Process], cli: Cli
) -> None:
    stopped, well = start("alpha"), start("beta")
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        with on_terminal(_TOP, _variables(environment)) as terminal:
            terminal.wait_for("3,000 restored", "beta")
            terminal.wait_for(f"process {stopped.pid}: the store did not answer")
            terminal.type("1" if stopped.pid > well.pid else "2")
            terminal.wait_for(f"beta, process {well.pid}")
            terminal.type("q")
            assert terminal.ended() == 0
        snapshot = cli("top", "--once")
        assert (snapshot.code, snapshot.err) == (0, "")
        assert "4,000 asked" in snapshot.out
        assert f"process {stopped.pid}: the store did not answer" in snapshot.out
    finally:
        os.kill(stopped.pid, signal.SIGCONT)


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_screen_has_no_colours_where_none_are_wanted(
    one_store: dict[str, str], no_color: str, coloured: bool
) -> None:
    with on_terminal(_TOP, _variables(one_store, NO_COLOR=no_color)) as terminal:
        terminal.wait_for("3,000 restored", "q quit")
        terminal.type("q")
        assert terminal.ended() == 0
        assert bool(re.search(r"\x1b\[(\d+;)*(3[1-7]|1|7)m", terminal.shown)) is coloured


def test_without_a_terminal_it_is_one_snapshot(cli: Cli, one_store: dict[str, str]) -> None:
    plain = cli("top", **one_store)
    assert (plain.code, plain.err) == (0, "")
    assert "first, process " in plain.out
    assert "Tiny" in plain.out
    assert "\x1b" not in plain.out
    document = json.loads(cli("top", "--format", "json", **one_store).out)
    assert document["namespaces"][0]["restored_tokens"] == 3000
    assert document["requests"][0]["pid"] == document["processes"][0]["pid"]
    assert sum(document["history"]["restored_tokens"]) == 3000
    assert cli("top", **one_store, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0").code == 0


def test_a_terminal_that_cannot_be_drawn_on_gets_a_snapshot(one_store: dict[str, str]) -> None:
    with on_terminal(_TOP, _variables(one_store, TERM="dumb")) as terminal:
        assert terminal.ended() == 0
        assert "3,000 restored" in terminal.shown
        assert "\x1b" not in terminal.shown
    with on_terminal(_TOP, _variables(one_store, TERM="no-such-terminal")) as terminal:
        assert terminal.ended() == 1
        assert "--once prints one snapshot" in terminal.shown


def test_where_no_store_runs_it_says_so(cli: Cli) -> None:
    ended = cli("top")
    assert (ended.code, "no store is running" in ended.err) == (69, True)
