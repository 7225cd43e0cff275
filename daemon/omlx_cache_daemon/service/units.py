"""Units for systemd and agents for launchd, with the path of this installation: of the service, and
of `omlx-cache serve`."""

import os
import plistlib
import shlex
import sys
from collections.abc import Sequence
from importlib.resources import files
from typing import Final

KINDS: Final = {"systemd": "service", "launchd": "plist"}
"""Each manager with the suffix of its files."""
_MODULES: Final = {"omlx-cached": "omlx_cache_daemon.service", "omlx-cache": "omlx_cache_daemon"}


def unit(kind: str, serve: Sequence[str] | None = None) -> str:
    """Return a unit as it is to be installed: of the service, or of `omlx-cache serve` with these
    arguments."""
    name = "omlx-cached" if serve is None else "omlx-cache-serve"
    file = files("omlx_cache_daemon.service").joinpath("units", f"{name}.{KINDS[kind]}")
    command = _command("omlx-cached")
    if serve is not None:
        command = [*_command("omlx-cache"), "serve", *serve]
    if kind == "systemd":
        start = shlex.join(command).replace("%", "%%").replace("$", "$$")
        return file.read_text().replace(f"ExecStart={name}", f"ExecStart={start}")
    agent = plistlib.loads(file.read_bytes())
    agent["ProgramArguments"] = command
    agent["StandardErrorPath"] = os.path.expanduser(f"~/Library/Logs/{name}.log")
    return plistlib.dumps(agent, sort_keys=False).decode()


def _command(name: str) -> list[str]:
    """Return what starts a program: the script beside this interpreter, or its module."""
    script = os.path.join(os.path.dirname(sys.executable), name)
    return [script] if os.access(script, os.X_OK) else [sys.executable, "-m", _MODULES[name]]
