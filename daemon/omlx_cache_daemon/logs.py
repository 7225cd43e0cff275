"""What a command that runs for long logs on standard error, and from which level on."""

import logging
import os
from collections.abc import Mapping

from omlx_cache.package import LEVELS, set_level
from omlx_cache.settings.names import variable

_FORMAT = "%(asctime)s - %(levelname)s - %(message)s"


def show_logs(
    flag: str | None, default: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Have messages shown on standard error, and return the setting that this was not read from:
    `log_level`, or nothing where the environment has it.

    `flag` counts for everything, as in mlx-lm's server. Without it `OMLX_CACHE_LOG_LEVEL`, else
    `default`, counts for this project; other packages show `info` at most, since in more detail
    they log what clients send. A bad variable is for `CacheSettings` to refuse.
    """
    asked = environ.get(variable("log_level"))
    word = (asked or "").strip().lower()
    level = (flag or (word if word in LEVELS else default)).lower()
    number = logging.getLevelNamesMapping()[level.upper()]
    # transformers would say that it did not find PyTorch, which nobody here looks for.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    logging.basicConfig(level=number if flag else max(number, logging.INFO), format=_FORMAT)
    set_level(level)
    return {} if flag is None and asked is not None else {"log_level": level}
