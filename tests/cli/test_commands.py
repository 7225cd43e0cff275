import json
import os
import signal
from pathlib import Path

import pytest

from kit.examples import some

from .conftest import Cli, StartStore


def test_stats_are_three_lines_and_with_all_every_counter(
    cli: Cli, start_store: StartStore
) -> None:
    start_store()
    brief, whole = (
        [" ".join(line.split()) for line in cli("stats", *flags).out.splitlines()]
        for flags in ((), ("--all",))
    )
    assert brief == [
        "tokens 0.0% of 0 came from the cache",
        "time about 0 s saved",
        "holds memory 3.91 KiB of 7.81 KiB, disk 8.79 KiB of 97.66 KiB",
    ]
    assert whole[:3] == brief
    assert {"hot.nbytes 3.91 KiB", "requests.misses.absent 7", "uptime_seconds 1.5 s"} <= set(whole)


def test_a_stuck_store_does_not_hide_the_others(cli: Cli, start_store: StartStore) -> None:
    stuck, well = start_store("stuck"), start_store("well")
    os.kill(stuck.pid, signal.SIGSTOP)
    result = cli("ps", "--timeout", "0.2")
    assert result.code == 0
    rows = {line.split()[0]: line for line in result.out.splitlines()[1:]}
    assert "does not answer" in rows[str(stuck.pid)]
    assert "1 MiB / 1 GiB" in rows[str(well.pid)]


@pytest.mark.parametrize(
    "command", some([["log"], ["stats"], ["ps"], ["ps", "--watch"]], ["ps", "--watch"])
)
def test_nobody_there_is_69(cli: Cli, runtime_dir: Path, command: list[str]) -> None:
    for arguments in (command, (*command, "--pid", "1"), (*command, "--socket", "/nowhere")):
        cli(*arguments).assert_refused(69, "omlx-cache: ")
    assert str(runtime_dir) in cli(*command).err


def test_a_runtime_directory_that_cannot_be_used_is_named_with_the_reason(
    cli: Cli, tmp_path: Path
) -> None:
    place = tmp_path / "file"
    place.touch()
    for command in ("stats", "ps"):
        cli(command, OMLX_CACHE_RUNTIME_DIR=str(place)).assert_refused(
            69, f"(looked in {place}, which is not a directory)"
        )
    (tmp_path / "cold").mkdir()
    listed = cli("ls", OMLX_CACHE_RUNTIME_DIR=str(place))
    assert f"(not looked in {place}, which is not a directory); using" in listed.err


def test_a_killed_store_is_nobody(cli: Cli, start_store: StartStore) -> None:
    store = start_store()
    store.kill()
    assert store.path.exists()
    assert cli("ps").code == 69


def test_several_stores_are_listed_and_a_choice_is_asked_for(
    cli: Cli, start_store: StartStore
) -> None:
    first, second = start_store("one"), start_store("two")
    result = cli("stats", "--watch", "1")
    assert result.code == 2
    assert f"--pid {first.pid} or --socket {first.path}: one" in result.err
    assert f"--pid {second.pid} or --socket {second.path}: two" in result.err
    (chosen,) = json.loads(cli("ps", "--pid", str(second.pid), "--format", "json").out)
    assert chosen["models"] == ["two"]
    (chosen,) = json.loads(cli("ps", "--socket", str(first.path), "--format", "json").out)
    assert chosen["models"] == ["one"]


def test_a_store_at_a_configured_path_is_found(
    cli: Cli, start_store: StartStore, runtime_dir: Path
) -> None:
    path = str(runtime_dir / "mine.sock")
    start_store("mine", path)
    assert cli("ps").code == 69
    assert cli("ps", OMLX_CACHE_SOCKET=path).code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("ps", "--pid", "x"),
        ("ps", "--pid", "1", "--socket", "/x"),
        ("ps", "--watch", "0"),
        ("log", "--limit", "-1"),
        ("stats", "--all", "--watch"),
        ("stats", "--watch", "0"),
        ("stats", "--watch", "nan"),
        ("stats", "--format", "xml"),
        ("ls", "/xyz"),
        ("doctor", "--rate", "5MB"),
        ("ls", "--limit", "0"),
        ("serve", "--port", "99999"),
        ("warm",),
    ],
)
def test_a_wrong_command_line_is_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    result.assert_refused(2, f"; see {' '.join(['omlx-cache', *arguments[:1]])} --help\n")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("stast", "stast: unknown command; the nearest is stats"),
        ("Serve --model x", "Serve: unknown command; the nearest is serve"),
        ("serve --hot-bites 3 --model x", "--hot-bites: unknown flag; the nearest is --hot-bytes"),
        ("serve --hot-byte 3", "--hot-byte: unknown flag; the nearest is --hot-bytes"),
        ("serve --cold-dri=/x", "--cold-dri: unknown flag; the nearest is --cold-dir"),
        ("ls --fromat json", "--fromat: unknown flag; the nearest is --format"),
        ("stats --wacth 1", "--wacth: unknown flag; the nearest is --watch"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(cli: Cli, typed: str, line: str) -> None:
    result = cli(*typed.split())
    assert (result.code, result.out, result.err) == (2, "", f"omlx-cache: {line}\n")


@pytest.mark.parametrize(
    "arguments",
    some(
        [["ps"], ["log"], ["stats"], ["ls"], ["size", "x"], ["config"]],
        ["ps"],
        ["config"],
    ),
    ids=" ".join,
)
def test_every_command_refuses_an_unknown_variable(cli: Cli, arguments: list[str]) -> None:
    cli(*arguments, OMLX_CACHE_HOTBYTES="1").assert_refused(
        78, "OMLX_CACHE_HOTBYTES: unknown variable; the nearest is OMLX_CACHE_HOT_BYTES"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["demo", "--tokens", "16"], 2, "two blocks, 512"),
        (["size", ""], 1, "the model's name is empty"),
        (["size", "{}"], 1, "the configuration names no model_type"),
        pytest.param(
            ["size", '{"model_type": "alien"}'],
            1,
            "alien is not understood: mlx-lm raises ValueError: ",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_as_such(
    cli: Cli, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    if arguments[-1].startswith("{"):
        (tmp_path / "config.json").write_text(arguments[-1])
        arguments = ["size", str(tmp_path)]
    cli(*arguments).assert_refused(code, said)
