"""The error of every refused setting."""

from omlx_cache_storage.errors import CacheError


class ConfigError(CacheError, ValueError):
    """A setting is refused. The text names it, says what came and what is allowed."""
