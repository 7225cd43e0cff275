"""Whether this machine saves its battery: what nobody has asked for is then not worth computing."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from omlx_cache.settings.machine import text_of

PMSET_SECONDS = 2.0


def _pmset(*arguments: str) -> str:
    command = ["/usr/bin/pmset", "-g", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PMSET_SECONDS).stdout


def saves_power(
    root: Path = Path("/"),
    platform: str = sys.platform,
    pmset: Callable[..., str] = _pmset,
) -> bool:
    """Return whether it runs on its battery, or on macOS in Low Power Mode; False when the platform
    does not say. Waits for a process on macOS."""
    try:
        if platform == "darwin":
            return "Battery Power" in pmset("batt") or any(
                line.split() == ["lowpowermode", "1"] for line in pmset().splitlines()
            )
        supplies = root / "sys/class/power_supply"
        batteries = [one for one in supplies.glob("*") if text_of(one / "type") == "Battery\n"]
        # A wireless mouse has one too.
        return any(
            text_of(one / "status") == "Discharging\n" and text_of(one / "scope") != "Device\n"
            for one in batteries
        )
    except (OSError, subprocess.SubprocessError):
        return False
