"""The unit and the agent: what is in the repository, what is installed, and what reads them."""

import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest

from omlx_cache_daemon.service.units import unit

ROOT = Path(__file__).parent.parent.parent
SHIPPED = {
    "systemd": ROOT / "daemon" / "systemd" / "omlx-cached.service",
    "launchd": ROOT / "daemon" / "launchd" / "omlx-cached.plist",
}
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


@pytest.mark.parametrize("kind", SHIPPED)
def test_the_package_has_the_file_of_the_repository(kind: str) -> None:
    written = SHIPPED[kind]
    packaged = ROOT / "daemon" / "omlx_cache_daemon" / "service" / "units" / written.name
    assert packaged.read_bytes() == written.read_bytes()


def test_the_unit_begins_what_is_installed_here() -> None:
    [start] = [line for line in unit("systemd").splitlines() if line.startswith("ExecStart=")]
    command = start.removeprefix("ExecStart=").split()
    assert Path(command[0]).is_absolute()
    ended = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert ended.stdout.startswith("omlx-cached ")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "omlx-cached.service"
    path.write_text(unit("systemd"))
    ended = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(path)],
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_every_key_of_the_agent_is_one_that_launchd_documents() -> None:
    agent = plistlib.loads(unit("launchd").encode())
    assert agent["Label"] == "omlx-cached"
    assert Path(agent["ProgramArguments"][0]).is_absolute()
    assert Path(agent["StandardErrorPath"]).parent.name == "Logs"
    assert agent.keys() <= LAUNCHD_KEYS
    assert plistlib.loads(SHIPPED["launchd"].read_bytes()).keys() == agent.keys()
