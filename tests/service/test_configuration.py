"""The service's configuration: a file, below the environment, below the command line."""

from pathlib import Path

import pytest

from omlx_cache.settings import ConfigError
from omlx_cache.settings.names import REMOVED
from omlx_cache_daemon.service.configuration import default_file, read_configuration
from omlx_cache_daemon.service.main import main
from omlx_cache_daemon.service.options import REMOVED_NAMES

MIB = 2**20


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


def _origin(name: str, **flags: str) -> tuple[object, object]:
    source = read_configuration(flags, None).sources()[name]
    return source["value"], source["origin"]


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, variable, at in (
        ("cold_bytes", "OMLX_CACHE_COLD_BYTES", 4),
        ("scrub_bytes_per_second", "OMLX_CACHED_SCRUB_BYTES_PER_SECOND", 2),
    ):
        assert str(_origin(name)[1]).startswith(("derived", "default"))
        file.write_text(f'{name} = "{at}MiB"\n')
        assert _origin(name) == (at * MIB, f"file {file}")
        monkeypatch.setenv(variable, f"{at + 1}MiB")
        assert _origin(name) == ((at + 1) * MIB, f"environment {variable}")
        flag = f"--{name.replace('_', '-')}"
        assert _origin(name, **{name: f"{at + 2}MiB"}) == ((at + 2) * MIB, f"flag {flag}")
        monkeypatch.delenv(variable)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cold_byte = 1", "unknown key; the nearest is cold_bytes"),
        ("hot_bytes = 1", "unknown key"),
        ('cold_bytes = "1G"', "cold_bytes: got '1G'"),
        ("scrub_days = 0", "scrub_days: got 0; allowed: a number from 0.001 to 3650"),
        ("status_port = 70000", "status_port: got 70000; allowed: off, or a port"),
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
    assert str(file) in str(refused.value)
    assert told in str(refused.value)


@pytest.mark.parametrize("given_in", ["file", "environment", "flag"])
def test_to_send_what_prompts_share_is_refused_where_no_request_comes(
    given_in: str, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ['remote = "redis://127.0.0.1:1"']
    flags, named = [], f"{file}: remote_writes"
    if given_in == "file":
        lines.append('remote_writes = "shared"')
    elif given_in == "environment":
        named = "OMLX_CACHE_REMOTE_WRITES"
        monkeypatch.setenv(named, "shared")
    else:
        named = "--remote-writes"
        flags = [named, "shared"]
    file.write_text("\n".join(lines) + "\n")
    assert main(["--check-config", *flags]) == 78
    told = capsys.readouterr().err
    assert f"{named}: got 'shared'; allowed here: all, reused, off." in told
    assert "give it to the servers" in told


@pytest.mark.parametrize("writes", ["all", "reused", "off", "service"])
def test_to_send_anything_else_is_taken(writes: str, file: Path) -> None:
    file.write_text(f'remote = "redis://127.0.0.1:1"\nremote_writes = "{writes}"\n')
    assert read_configuration({}, None).settings.remote_writes == writes


@pytest.mark.parametrize("given_in", ["file", "environment", "flag"])
@pytest.mark.parametrize("name", REMOVED_NAMES)
def test_a_removed_setting_is_read_and_noted(
    given_in: str, name: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {name: "1"} if given_in == "flag" else {}
    if given_in == "file":
        file.write_text(f"{name} = 1\n")
    elif given_in == "environment":
        monkeypatch.setenv(f"OMLX_CACHE_{name.upper()}", "1")
    (note,) = [n for n in read_configuration(flags, None).notes() if name in n.lower()]
    assert note.endswith(f": {REMOVED[name]}")
    assert main(["--check-config", f"--{name.replace('_', '-')}", "1"]) == 0


def test_every_fault_is_told_at_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("nonsense = 1\nscrub_days = 0\n")
    monkeypatch.setenv("OMLX_CACHED_DRAIN", "1")
    with pytest.raises(ConfigError) as refused:
        read_configuration({"cold_bytes": "much"}, None)
    lines = str(refused.value).splitlines()
    assert len(lines) == 4
    assert any(line.startswith("--cold-bytes: got 'much'") for line in lines)
    assert any("the nearest is OMLX_CACHED_DRAIN_SECONDS" in line for line in lines)


def test_a_value_of_neither_kind_is_refused_once() -> None:
    with pytest.raises(ConfigError) as refused:
        read_configuration({"status_port": "on"}, None)
    assert str(refused.value).splitlines() == [
        "--status-port: got 'on'; allowed: off, or a port from 0 (any that is free) to 65535"
    ]


def test_no_port_is_the_default_and_can_be_said(file: Path) -> None:
    for given in ("", 'status_port = "off"', 'status_port = "OFF"'):
        file.write_text(given)
        assert read_configuration({}, None).options.status_port == "off"
        assert read_configuration({}, None).sources()["status_port"]["rendered"] == "off"


def test_checking_reads_the_token_that_the_port_would_ask_for(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('status_port = 0\nstatus_token_file = "~/token"\n')
    assert main(["--check-config"]) == 78
    assert f"status_token_file: {tmp_path / 'token'}: No such file" in capsys.readouterr().err
    (tmp_path / "token").write_text("a-secret-of-mine\n")
    (tmp_path / "token").chmod(0o644)
    assert main(["--check-config"]) == 78
    assert "chmod 600" in capsys.readouterr().err
    (tmp_path / "token").chmod(0o600)
    assert main(["--check-config"]) == 0
    assert "a-secret-of-mine" not in capsys.readouterr().out


def test_the_help_says_what_each_setting_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "--scrub-bytes-per-second BYTES How fast" in shown
    assert "Default: 8 MiB" in shown


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        read_configuration({}, tmp_path / "absent.toml")


def test_checking_shows_origins_and_touches_nothing(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('scrub_days = 3\nstatus_token_file = "~/token"\n')
    before = sorted(tmp_path.rglob("*"))
    assert main(["--check-config"]) == 0
    shown = capsys.readouterr().out
    assert "scrub_days              3.0  " in shown or f"file {file}" in shown
    assert "has no effect: status_port is off" in shown
    file.write_text("scrub_days = 0\n")
    assert main(["--check-config"]) == 78
    assert "omlx-cached: " in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
