"""Whether a machine saves its battery, as platforms say it."""

import subprocess
from pathlib import Path

import pytest

from omlx_cache.settings.machine import saves_power


@pytest.mark.parametrize(
    ("kind", "status", "scope", "saves"),
    [
        ("Battery", "Discharging", None, True),
        ("Battery", "Discharging", "System", True),
        ("Battery", "Discharging", "Device", False),
        ("Battery", "Charging", None, False),
        ("Mains", "Discharging", None, False),
    ],
)
def test_linux_says_what_each_supply_does(
    kind: str, status: str, scope: str | None, saves: bool, tmp_path: Path
) -> None:
    assert not saves_power(tmp_path, "linux"), "it says nothing"
    supply = tmp_path / "sys/class/power_supply/BAT0"
    supply.mkdir(parents=True)
    (supply / "type").write_text(f"{kind}\n")
    (supply / "status").write_text(f"{status}\n")
    if scope is not None:
        (supply / "scope").write_text(f"{scope}\n")
    assert saves_power(tmp_path, "linux") is saves


@pytest.mark.parametrize(
    ("source", "low", "saves"),
    [("AC Power", 0, False), ("AC Power", 1, True), ("Battery Power", 0, True)],
)
def test_macos_is_asked_for_its_source_and_its_mode(source: str, low: int, saves: bool) -> None:
    def pmset(*arguments: str) -> str:
        if arguments == ("batt",):
            return f"Now drawing from '{source}'\n -InternalBattery-0 80%; discharging\n"
        return f"System-wide power settings:\n lowpowermode         {low}\n sleep 1\n"

    assert saves_power(platform="darwin", pmset=pmset) is saves


def test_a_platform_that_does_not_answer_saves_nothing() -> None:
    def hangs(*arguments: str) -> str:
        raise subprocess.TimeoutExpired("pmset", 2.0)

    assert saves_power(platform="darwin", pmset=hangs) is False
