"""The policies by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from omlx_cache_storage.eviction.keep import Keep
from omlx_cache_storage.eviction.learned import Learned
from omlx_cache_storage.eviction.policy import EvictionPolicy, Lru


def lru(_learned: Learned | None) -> EvictionPolicy:
    """Return a policy that learns nothing."""
    return Lru()


EVICTION_POLICIES: Final[Mapping[str, Callable[[Learned | None], EvictionPolicy]]] = (
    MappingProxyType({"keep": Keep, "lru": lru})
)
"""Each takes what was learned before, or None."""
