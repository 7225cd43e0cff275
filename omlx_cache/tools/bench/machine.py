"""What the figures were measured on: hardware in general words, never a host's name."""

import datetime
import os
import platform
import subprocess
from importlib.metadata import version

import mlx.core as mx

from omlx_cache.settings.machine import probe
from omlx_cache.settings.sizes import format_size


def describe() -> dict[str, str]:
    """Return processor, cores, memory, MLX's device and versions, system and date."""
    return {
        "processor": _processor(),
        "cores": str(_cores()),
        "memory": format_size(probe().memory_bytes),
        "MLX device": _device(),
        "MLX": version("mlx"),
        "mlx-lm": version("mlx-lm"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            named = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    except OSError:
        named = []
    return named[0] if named else platform.machine()


def _device() -> str:
    kind = "CPU" if mx.default_device() == mx.cpu else "GPU"
    described = mx.device_info(mx.default_device())
    name = described.get("device_name", "") if kind == "GPU" else ""
    return f"{kind} {name}".strip()
