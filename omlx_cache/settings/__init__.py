"""What a user can set, where each value came from, and what is refused.

Names are imported when first used: `ConfigError`, sizes and places cost nothing, while
`CacheSettings` imports pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omlx_cache.settings.machine import DiskSpace, Machine
    from omlx_cache.settings.model import CacheSettings
    from omlx_cache.settings.names import ConfigError
    from omlx_cache.settings.values import SettingSource

__all__ = ["CacheSettings", "ConfigError", "DiskSpace", "Machine", "SettingSource"]

_MODULES = {
    "CacheSettings": "model",
    "ConfigError": "names",
    "DiskSpace": "machine",
    "Machine": "machine",
    "SettingSource": "values",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
