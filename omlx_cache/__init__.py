"""Prefix caching for MLX models, for a scheduler to embed.

A name is imported when it is first used, so that a program that needs none of MLX (the command
line) does not wait for it.
"""

from typing import TYPE_CHECKING

from omlx_cache.package import VERSION as __version__
from omlx_cache.package import on_first_use

if TYPE_CHECKING:
    from omlx_cache.adapters import Adapter, UnsupportedCache, register_adapter
    from omlx_cache.begun import Begun
    from omlx_cache.codecs.policy import CodecPolicy
    from omlx_cache.commit.committer import CommitResult, SnapshotPolicy, StridePolicy
    from omlx_cache.prefix import Lookup, PageLocation, Pin, PrefixCache
    from omlx_cache.preparation import Preparation
    from omlx_cache.requests.explanation import Explanation
    from omlx_cache.session import Session
    from omlx_cache.settings import CacheSettings, ConfigError
    from omlx_cache.store import BlockStore
    from omlx_cache_storage.prefetch import Prefetch
    from omlx_cache_storage.stats import Stats

__all__ = [
    "Adapter",
    "Begun",
    "BlockStore",
    "CacheSettings",
    "CodecPolicy",
    "CommitResult",
    "ConfigError",
    "Explanation",
    "Lookup",
    "PageLocation",
    "Pin",
    "Prefetch",
    "PrefixCache",
    "Preparation",
    "Session",
    "SnapshotPolicy",
    "Stats",
    "StridePolicy",
    "UnsupportedCache",
    "__version__",
    "register_adapter",
]

_MODULES = {
    "Adapter": "omlx_cache.adapters",
    "Begun": "omlx_cache.begun",
    "BlockStore": "omlx_cache.store",
    "CacheSettings": "omlx_cache.settings",
    "CodecPolicy": "omlx_cache.codecs.policy",
    "CommitResult": "omlx_cache.commit.committer",
    "ConfigError": "omlx_cache.settings",
    "Explanation": "omlx_cache.requests.explanation",
    "Lookup": "omlx_cache.prefix",
    "PageLocation": "omlx_cache.prefix",
    "Pin": "omlx_cache.prefix",
    "Prefetch": "omlx_cache_storage.prefetch",
    "PrefixCache": "omlx_cache.prefix",
    "Preparation": "omlx_cache.preparation",
    "Session": "omlx_cache.session",
    "SnapshotPolicy": "omlx_cache.commit.committer",
    "Stats": "omlx_cache_storage.stats",
    "StridePolicy": "omlx_cache.commit.committer",
    "UnsupportedCache": "omlx_cache.adapters",
    "register_adapter": "omlx_cache.adapters",
}
__getattr__ = on_first_use(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
