"""How short memory is, from what the platforms say."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from kit.trees import write_tree
from kit.units import MIB
from omlx_cache.upkeep.memory import Darwin, Level, Linux, MemoryFigures, level_of, reader


def _machine(root: Path, available: int) -> Path:
    text = f"MemTotal: 16777216 kB\nMemAvailable: {available // 1024} kB\n"
    return write_tree(root, {"proc/meminfo": text, "proc/self/cgroup": "0::/app\n"})


def test_without_a_group_what_is_available_on_the_machine_counts(tmp_path: Path) -> None:
    assert Linux(_machine(tmp_path, 900 * MIB))() == MemoryFigures(900 * MIB)


def test_a_group_of_version_2_may_have_less_room_and_its_file_cache_counts_as_room(
    tmp_path: Path,
) -> None:
    root = _machine(tmp_path, 900 * MIB)
    files = {
        "memory.max": f"{512 * MIB}\n",
        "memory.current": f"{480 * MIB}\n",
        "memory.stat": f"anon 1\ninactive_file {100 * MIB}\nactive_file {20 * MIB}\n",
    }
    group = write_tree(root / "sys/fs/cgroup/app", files)
    assert Linux(root)().free_bytes == (32 + 100 + 10) * MIB
    (group / "memory.max").write_text("max\n")
    assert Linux(root)().free_bytes == 900 * MIB


def test_a_group_of_version_1_counts_with_its_children(tmp_path: Path) -> None:
    root = _machine(tmp_path, 900 * MIB)
    (root / "proc/self/cgroup").write_text("4:memory:/box\n")
    files = {
        "memory.limit_in_bytes": f"{300 * MIB}\n",
        "memory.usage_in_bytes": f"{290 * MIB}\n",
        "memory.stat": f"inactive_file 1\ntotal_inactive_file {40 * MIB}\n",
    }
    write_tree(root / "sys/fs/cgroup/memory/box", files)
    assert Linux(root)().free_bytes == 50 * MIB


def test_stalls_are_those_of_all_tasks_in_the_last_ten_seconds(tmp_path: Path) -> None:
    root = _machine(tmp_path, 900 * MIB)
    stalls = (
        "some avg10=60.00 avg60=1.00 avg300=0.00 total=1\n"
        "full avg10=12.50 avg60=1.00 avg300=0.00 total=1\n"
    )
    write_tree(root, {"proc/pressure/memory": stalls})
    assert Linux(root)().stalled == pytest.approx(0.125)


@pytest.mark.parametrize("text", ["", "\0\xff", "MemAvailable:\n", "MemAvailable: x kB\n", "a=b\n"])
def test_files_that_say_nothing_are_no_shortage(tmp_path: Path, text: str) -> None:
    said = {"proc/meminfo": text, "proc/pressure/memory": f"full {text}"}
    root = write_tree(tmp_path, said)
    assert level_of(Linux(root)(), 2**40) is Level.NORMAL


@pytest.mark.parametrize(
    ("figures", "level"),
    [
        (MemoryFigures(100), Level.NORMAL),
        (MemoryFigures(99), Level.WARN),
        (MemoryFigures(49), Level.CRITICAL),
        (MemoryFigures(0), Level.CRITICAL),
        (MemoryFigures(None), Level.NORMAL),
        (MemoryFigures(150, stalled=0.2), Level.WARN),
        (MemoryFigures(500, stalled=0.9), Level.NORMAL),
        (MemoryFigures(10**9, verdict=Level.CRITICAL), Level.CRITICAL),
        (MemoryFigures(0, verdict=Level.NORMAL), Level.NORMAL),
    ],
)
def test_the_level_follows_from_what_should_stay_free(figures: MemoryFigures, level: Level) -> None:
    assert level_of(figures, 100) is level


@pytest.mark.parametrize(
    ("said", "level"), [(1, Level.NORMAL), (2, Level.WARN), (4, Level.CRITICAL), (7, None)]
)
def test_macos_gives_its_verdict_itself(said: int, level: Level | None) -> None:
    class Libc:
        def sysctlbyname(self, name: bytes, value: Any, size: Any, *_: object) -> int:
            assert name == b"kern.memorystatus_vm_pressure_level"
            assert size._obj.value == ctypes.sizeof(ctypes.c_int)
            value._obj.value = said
            return 0

    assert Darwin(Libc())() == MemoryFigures(verdict=level)


def test_this_machine_says_something() -> None:
    figures = reader()()
    assert figures.verdict is not None or (figures.free_bytes or 0) > 0
