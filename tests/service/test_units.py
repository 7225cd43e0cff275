"""The units and the agents: what starts, and what reads them."""

import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

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
