"""What can be wrong with the demo's input."""

from omlx_cache_storage.errors import CacheError


class DemoError(CacheError):
    """The demo cannot run on what it was given; the text says what to change."""
