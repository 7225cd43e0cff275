"""The unit for systemd and the agent for launchd, with the path of this installation."""

import os
import shlex
import sys
from importlib.resources import files
from typing import Final
from xml.sax.saxutils import escape

KINDS: Final = ("systemd", "launchd")
_FILES: Final = {"systemd": "omlx-cached.service", "launchd": "omlx-cached.plist"}
_COMMANDS: Final = {
    "systemd": "%h/.local/bin/omlx-cached",
    "launchd": "    <string>/usr/local/bin/omlx-cached</string>",
}
"""What stands in the files for the path of an installation."""
_LOG: Final = "/tmp/omlx-cached.log"


def unit(kind: str) -> str:
    """Return a unit as it is to be installed."""
    written = files("omlx_cache_daemon.service").joinpath("units", _FILES[kind]).read_text()
    if kind == "systemd":
        command = shlex.join(_command()).replace("%", "%%")
        return written.replace(f"ExecStart={_COMMANDS[kind]}", f"ExecStart={command}")
    arguments = "\n".join(f"    <string>{escape(word)}</string>" for word in _command())
    log = escape(os.path.expanduser("~/Library/Logs/omlx-cached.log"))
    return written.replace(_COMMANDS[kind], arguments).replace(_LOG, log)


def _command() -> list[str]:
    """Return what starts the service: the script beside this interpreter, or the module."""
    script = os.path.join(os.path.dirname(sys.executable), "omlx-cached")
    if os.access(script, os.X_OK):
        return [script]
    return [sys.executable, "-m", "omlx_cache_daemon.service"]
