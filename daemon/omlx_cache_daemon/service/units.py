"""Units for systemd and agents for launchd, of the service and of `omlx-cache serve`."""

import os
import plistlib
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from omlx_cache_daemon.errors import CommandError

KINDS: Final = {"systemd": "service", "launchd": "plist"}
"""Each manager with the suffix of its files."""
SERVER: Final = "omlx-cache-serve"
_MODULES: Final = {"omlx-cached": "omlx_cache_daemon.service", "omlx-cache": "omlx_cache_daemon"}


def unit(kind: str, serve: Sequence[str] | None = None) -> str:
    """Return a unit as it is to be installed: of `omlx-cache serve` with these arguments, or of the
    service."""
    name = "omlx-cached" if serve is None else SERVER
    file = files("omlx_cache_daemon.service").joinpath("units", f"{name}.{KINDS[kind]}")
    command = (
        _command("omlx-cached") if serve is None else [*_command("omlx-cache"), "serve", *serve]
    )
    if kind == "systemd":
        start = shlex.join(command).replace("%", "%%").replace("$", "$$")
        return file.read_text().replace(f"ExecStart={name}", f"ExecStart={start}")
    agent = plistlib.loads(file.read_bytes())
    agent["ProgramArguments"] = command
    agent["StandardErrorPath"] = os.path.expanduser(f"~/Library/Logs/{name}.log")
    return plistlib.dumps(agent, sort_keys=False).decode()


def start_at_login(serve: Sequence[str]) -> str:
    """Have `omlx-cache serve` with these arguments run now and after each login; return a note for
    the person. Raises CommandError, OSError."""
    kind, path = _place()
    if kind == "systemd":
        # Without it nobody would read the file.
        advice = "; log in as this user: su and sudo start no systemd --user"
        _call("systemctl", "--user", "show-environment", advice=advice)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(unit(kind, serve))
    if kind == "launchd":
        # One that runs with other arguments ends first.
        _call("launchctl", "bootout", f"gui/{os.getuid()}/{SERVER}", required=False)
        _call("launchctl", "bootstrap", f"gui/{os.getuid()}", str(path))
        return f"{SERVER} runs now and after each login; its log is ~/Library/Logs/{SERVER}.log"
    for words in (["daemon-reload"], ["enable", SERVER], ["restart", SERVER]):
        _call("systemctl", "--user", *words)
    return f"{SERVER} runs now and after each login; its log: journalctl --user -u {SERVER}"


def end_at_login() -> str:
    """Undo `start_at_login`, and end the server. Raises as that does."""
    kind, path = _place()
    if kind == "launchd":
        _call("launchctl", "bootout", f"gui/{os.getuid()}/{SERVER}", required=False)
    elif path.exists():
        _call("systemctl", "--user", "disable", "--now", SERVER)
    path.unlink(missing_ok=True)
    return f"{SERVER} does not start at login"


def _place() -> tuple[str, Path]:
    if sys.platform == "darwin":
        return "launchd", Path.home() / "Library" / "LaunchAgents" / f"{SERVER}.plist"
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    return "systemd", settings / "systemd" / "user" / f"{SERVER}.service"


def _call(*command: str, required: bool = True, advice: str = "") -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode and required:
        raise CommandError(
            f"{shlex.join(command)}: {ended.stderr.strip() or ended.returncode}{advice}"
        )


def _command(name: str) -> list[str]:
    script = os.path.join(os.path.dirname(sys.executable), name)
    return [script] if os.access(script, os.X_OK) else [sys.executable, "-m", _MODULES[name]]
