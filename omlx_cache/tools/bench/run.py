"""The parts of the benchmarks, and one run of some of them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from omlx_cache.tools.bench.codecs import measure_codecs
from omlx_cache.tools.bench.disk import measure_disk
from omlx_cache.tools.bench.figures import Measured, Results, Size, describe_machine
from omlx_cache.tools.bench.remote import measure_remote
from omlx_cache.tools.bench.restores import measure_restores


def run(size: Size, parts: list[str], workspace: Path, say: Callable[[str], None]) -> Results:
    """Measure some of the parts (restore, kv, disk, remote); takes disk for some copies of the KV.

    Raises RuntimeError for what a store did not do, and what the disk raises.
    """
    found: list[Measured] = []
    measures: dict[str, Callable[[Size, Path], Measured]] = {
        "restore": measure_restores,
        "kv": measure_codecs,
        "disk": measure_disk,
        "remote": partial(measure_remote, say=say),
    }
    for part in parts:
        say(part)
        directory = workspace / part
        directory.mkdir()
        found.append(measures[part](size, directory))
    return Results(size, describe_machine(), found)
