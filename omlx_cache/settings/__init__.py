"""What a user can set, where each value came from, and what is refused. Names are imported when
first used, as `CacheSettings` imports pydantic."""

from typing import TYPE_CHECKING

from omlx_cache.package import on_first_use

if TYPE_CHECKING:
    from omlx_cache.settings.machine import DiskSpace, Machine
    from omlx_cache.settings.model import CacheSettings
    from omlx_cache.settings.names import ConfigError
    from omlx_cache.settings.values import SettingSource

__all__ = ["CacheSettings", "ConfigError", "DiskSpace", "Machine", "SettingSource"]

_MODULES = {
    "CacheSettings": ".model",
    "ConfigError": ".names",
    "DiskSpace": ".machine",
    "Machine": ".machine",
    "SettingSource": ".values",
}

__getattr__ = on_first_use(__name__, _MODULES)
