"""The service's configuration: a file, below the environment, below the command line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.units import MIB
from omlx_cache.settings import ConfigError
from omlx_cache.settings.names import REMOVED
from omlx_cache_daemon.service.configuration import (
    REMOVED_NAMES,
    default_file,
    read_configuration,
)
from omlx_cache_daemon.service.main import main

Give = Callable[[str, str, str], dict[str, str]]


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("OMLX_CACHE_COLD_DIR", str(tmp_path / "cold"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = default_file({"XDG_CONFIG_HOME": str(tmp_path / "config")}, tmp_path, "Linux")
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def give(file: Path, monkeypatch: pytest.MonkeyPatch) -> Give:
    """Gives a setting in a file, in the environment or by a flag; returns the flags."""

    def given(where: str, name: str, value: str) -> dict[str, str]:
        if where == "file":
            file.write_text(f'{name} = "{value}"\n')
        elif where == "environment":
            prefix = "OMLX_CACHED_" if name.startswith("scrub") else "OMLX_CACHE_"
            monkeypatch.setenv(f"{prefix}{name.upper()}", value)
        return {name: value} if where == "flag" else {}

    return given


@pytest.mark.parametrize("name", ["cold_bytes", "scrub_bytes_per_second"])
def test_a_flag_wins_over_the_environment_and_that_over_the_file(name: str, give: Give) -> None:
    assert read_configuration({}, None).sources()[name]["kind"] in ("derived", "default")
    for number, where in enumerate(("file", "environment", "flag"), 4):
        flags = give(where, name, f"{number}MiB")
        source = read_configuration(flags, None).sources()[name]
        assert (source["value"], source["kind"]) == (number * MIB, where)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cold_byte = 1", "unknown key; the nearest is cold_bytes"),
        ("hot_bytes = 1", "unknown key"),
        ('cold_bytes = "1G"', "cold_bytes: got '1G'"),
        ("scrub_days = 0", "scrub_days: got 0; allowed: a number from 0.001 to 3650"),
        ("status_port = 70000", "status_port: got 70000; allowed: off, or a port"),
        ('status_port = "on"', "status_port: got 'on'; allowed: off, or a port"),
        ("status_port = true", "status_port: got True (a number was expected); allowed: off"),
        ("drain_seconds = true", "drain_seconds: got True (a number was expected)"),
        ("status_port = ", "Invalid value"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_what_is_allowed(
    file: Path, text: str, told: str
) -> None:
    file.write_text(text + "\n")
    with pytest.raises(ConfigError) as refused:
        read_configuration({}, None)
    [line] = str(refused.value).splitlines()
    assert str(file) in line
    assert told in line


def test_every_fault_is_told_at_once(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("nonsense = 1\nscrub_days = 0\n")
    monkeypatch.setenv("OMLX_CACHED_DRAIN", "1")
    with pytest.raises(ConfigError) as refused:
        read_configuration({"cold_bytes": "much"}, None)
    lines = str(refused.value).splitlines()
    assert len(lines) == 4
    assert any(line.startswith("--cold-bytes: got 'much'") for line in lines)
    assert any("the nearest is OMLX_CACHED_DRAIN_SECONDS" in line for line in lines)
    with pytest.raises(ConfigError, match="there is no file"):
        read_configuration({}, tmp_path / "absent.toml")


@pytest.mark.parametrize("where", ["file", "environment", "flag"])
@pytest.mark.parametrize("writes", ["shared", "reused"])
def test_to_send_by_requests_is_refused_where_none_come(
    where: str, writes: str, give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_REMOTE", "redis://127.0.0.1:1")
    flags = give(where, "remote_writes", writes)
    with pytest.raises(ConfigError, match=rf"(?i)remote.writes: got '{writes}'; allowed here: all"):
        read_configuration(flags, None)
    assert read_configuration({"remote_writes": "off"}, None).settings.remote_writes == "off"


@pytest.mark.parametrize("where", ["file", "environment", "flag"])
@pytest.mark.parametrize("name", REMOVED_NAMES)
def test_a_removed_setting_is_read_and_noted(where: str, name: str, give: Give) -> None:
    read = read_configuration(give(where, name, "1"), None)
    (note,) = [note for note in read.notes() if name in note.lower()]
    assert note.endswith(f": {REMOVED[name]}")
    assert main(["--check-config", f"--{name.replace('_', '-')}", "1"]) == 0


@pytest.mark.parametrize("given", ["", 'status_port = "off"', 'status_port = "OFF"'])
def test_no_port_is_the_default_and_can_be_said(file: Path, given: str) -> None:
    file.write_text(given)
    assert read_configuration({}, None).sources()["status_port"]["rendered"] == "off"


def test_checking_shows_origins_reads_the_token_and_touches_nothing(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    file.write_text('scrub_days = 3\nstatus_token_file = "~/token"\n')
    before = sorted(tmp_path.rglob("*"))
    assert main(["--check-config"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"scrub_days +3\.0 +file {file}\n", shown)
    assert "has no effect: status_port is off" in shown
    assert main(["--check-config", "--status-port", "0"]) == 78
    assert f"status_token_file: {token}: No such file" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    for mode, code in ((0o644, 78), (0o600, 0)):
        token.write_text("a-secret-of-mine\n")
        token.chmod(mode)
        assert main(["--check-config", "--status-port", "0"]) == code
        assert "a-secret-of-mine" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("typed", ["--foo", "foo", "--print-unit cron", "--serve"])
def test_a_wrong_command_line_is_one_line(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed.split()) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
