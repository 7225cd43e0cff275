"""An application has its own logging: a store sets the level of our loggers, when it is given."""

import os
import subprocess
import sys

import pytest

_EMBED = """
import logging, sys
from omlx_cache import BlockStore, CacheSettings
given = {"log_level": sys.argv[1]} if sys.argv[1:] else {}
with BlockStore(CacheSettings(hot_cache_only=True, hot_bytes="1MiB", socket="off", **given)):
    names = ("omlx_cache", "omlx_cache_storage", "")
    levels = [logging.getLevelName(logging.getLogger(name).level) for name in names]
    print(*levels, len(logging.getLogger().handlers))
"""


@pytest.mark.parametrize(
    ("argument", "variable", "levels"),
    [
        ((), None, "NOTSET NOTSET WARNING 0"),
        ((), "debug", "DEBUG DEBUG WARNING 0"),
        (("error",), "debug", "ERROR ERROR WARNING 0"),
    ],
)
def test_a_level_that_was_given_is_that_of_our_loggers_alone(
    argument: tuple[str, ...], variable: str | None, levels: str
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMLX_")}
    kept["PYTHONPATH"] = os.pathsep.join(sys.path)
    given = {"OMLX_CACHE_LOG_LEVEL": variable} if variable else {}
    done = subprocess.run(
        [sys.executable, "-c", _EMBED, *argument],
        env={**kept, **given},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{levels}\n"
