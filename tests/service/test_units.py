"""The units and the agents: what starts, and what reads them."""

import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omlx_cache_daemon import cli
from omlx_cache_daemon.service.units import unit

SERVE = ["--model", "a model", "--port", "8080"]
LAUNCHD_KEYS = {
    "AbandonProcessGroup", "AssociatedBundleIdentifiers", "BinaryOrderPreference", "BundleProgram",
    "Debug", "Disabled", "EnableGlobbing", "EnablePressuredExit", "EnableTransactions",
    "EnvironmentVariables", "ExitTimeOut", "GroupName", "HardResourceLimits", "inetdCompatibility",
    "InitGroups", "KeepAlive", "Label", "LaunchEvents", "LaunchOnlyOnce", "LegacyTimers",
    "LimitLoadFromHosts", "LimitLoadToHosts", "LimitLoadToSessionType",
    "LowPriorityBackgroundIO", "LowPriorityIO", "MachServices", "MaterializeDatalessFiles",
    "Nice", "OnDemand", "ProcessType", "Program", "ProgramArguments", "QueueDirectories",
    "RootDirectory", "RunAtLoad", "ServiceIPC", "SessionCreate", "Sockets", "SoftResourceLimits",
    "StandardErrorPath", "StandardInPath", "StandardOutPath", "StartCalendarInterval",
    "StartInterval", "StartOnMount", "ThrottleInterval", "TimeOut", "Umask", "UserName",
    "WaitForDebugger", "WatchPaths", "WorkingDirectory",
}  # fmt: skip
"""What launchd.plist(5) documents."""


def test_the_unit_begins_what_is_installed_here() -> None:
    [start] = [line for line in unit("systemd").splitlines() if line.startswith("ExecStart=")]
    command = start.removeprefix("ExecStart=").split()
    assert Path(command[0]).is_absolute()
    ended = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert ended.stdout.startswith("omlx-cached ")
    assert "serve --model 'a model' --port 8080\n" in unit("systemd", SERVE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("serve", [None, SERVE])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, serve: list[str] | None) -> None:
    path = tmp_path / "tested.service"
    path.write_text(unit("systemd", serve))
    ended = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(path)],
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("serve", "label", "rest"),
    [(None, "omlx-cached", []), (SERVE, "omlx-cache-serve", ["serve", *SERVE])],
)
def test_every_key_of_the_agent_is_one_that_launchd_documents(
    serve: list[str] | None, label: str, rest: list[str]
) -> None:
    agent = plistlib.loads(unit("launchd", serve).encode())
    command = [Path(word) for word in agent["ProgramArguments"]]
    assert command[0].is_absolute()
    assert agent["ProgramArguments"][len(command) - len(rest) :] == rest
    assert (agent["Label"], Path(agent["StandardErrorPath"]).parent.name) == (label, "Logs")
    assert agent.keys() <= LAUNCHD_KEYS


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stand-ins for the managers write how they were called."""
    path = tmp_path / "told"
    for name in ("systemctl", "launchctl"):
        tool = tmp_path / name
        tool.write_text(f'#!/bin/sh\necho {name} "$@" >> {path}\n')
        tool.chmod(0o755)
    for name in ("HOME", "PATH", "OMLX_CACHE_COLD_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return path


def test_one_command_starts_a_server_at_login_and_one_ends_that(
    tmp_path: Path, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a model").mkdir()
    path = tmp_path / ".config/systemd/user/omlx-cache-serve.service"
    assert cli.main(["serve", "--at-login", *SERVE]) == 0
    assert path.read_text() == unit("systemd", ["--model", str(tmp_path / "a model"), *SERVE[2:]])
    user = "systemctl --user"
    asked = [f"{user} show-environment", f"{user} daemon-reload"]
    started = [*asked, f"{user} enable omlx-cache-serve"]
    assert told.read_text().splitlines() == [*started, f"{user} restart omlx-cache-serve"]
    told.unlink()
    for _ in range(2):
        assert cli.main(["serve", "--no-at-login"]) == 0
    assert told.read_text() == f"{user} disable --now omlx-cache-serve\n"
    assert cli.main(["serve", "--at-login", "--model=a model"]) == 0
    assert path.read_text() == unit("systemd", [f"--model={tmp_path / 'a model'}"])
    relative = "--adapter-path a --remote-secret=file:secret --cold-dir ~/cold --draft-model an/id"
    (tmp_path / "a").mkdir()
    assert cli.main(["serve", "--at-login", *relative.split(), "--trace=off"]) == 0
    absolute = (
        f"--adapter-path {tmp_path}/a --remote-secret=file:{tmp_path}/secret "
        f"--cold-dir {tmp_path}/cold --draft-model an/id"
    )
    assert path.read_text() == unit("systemd", [*absolute.split(), "--trace=off"])
    assert cli.main(["serve", "--no-at-login"]) == 0
    assert not path.exists()


def test_launchd_starts_a_server_at_login_too(
    tmp_path: Path, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    path = tmp_path / "Library/LaunchAgents/omlx-cache-serve.plist"
    for _ in range(2):
        assert cli.main(["serve", *SERVE, "--at-login"]) == 0
    assert path.read_text() == unit("launchd", SERVE)
    assert cli.main(["serve", "--no-at-login"]) == 0
    assert not path.exists()
    words = [line.split()[:2] for line in told.read_text().splitlines()]
    assert [word for _, word in words] == [
        "bootout",
        "bootstrap",
        "bootout",
        "bootstrap",
        "bootout",
    ]


def test_what_cannot_start_at_login_is_said(
    tmp_path: Path, told: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--at-login", "--hot-bytes", "many"]) == 78
    assert not told.exists()
    (tmp_path / "systemctl").write_text("#!/bin/sh\necho no bus >&2; exit 1\n")
    assert cli.main(["serve", "--at-login"]) == 1
    assert "systemctl --user show-environment: no bus; log in" in capsys.readouterr().err
    assert not (tmp_path / ".config").exists()
    (tmp_path / "systemctl").unlink()
    assert cli.main(["serve", "--at-login"]) == 1
    assert "systemctl: No such file" in capsys.readouterr().err
