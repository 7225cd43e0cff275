"""Why an archive is not read any further."""

from omlx_cache_storage.errors import CacheError


class ArchiveError(CacheError):
    """An archive is not one of ours, is damaged, or ends too early; the text says where."""


class TruncatedArchive(ArchiveError):
    """An archive ends before its end mark."""
