"""This package's version, and the loggers of the project. Their handlers are the application's."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

VERSION: Final = "0.1.0"
LEVELS = ("debug", "info", "warning", "error", "critical")
OWN_LOGGERS = ("omlx_cache", "omlx_cache_storage", "omlx_cache_daemon")


def on_first_use(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__`, which imports each name when it is first used."""

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(modules[name], package), name)
        return value

    return get


def set_level(level: str) -> None:
    import logging  # only here: the command line starts without it

    for name in OWN_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
