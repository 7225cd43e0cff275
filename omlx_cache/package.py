"""This package's version, and the loggers of the project. Their handlers are the application's."""

from typing import Final

VERSION: Final = "0.1.0"
LEVELS = ("debug", "info", "warning", "error", "critical")
OWN_LOGGERS = ("omlx_cache", "omlx_cache_storage", "omlx_cache_daemon")


def set_level(level: str) -> None:
    """Have this project's loggers, and no other, pass on messages of a level and above."""
    import logging  # only here: the command line starts without it

    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
