"""Working caches: running requests append to them, and restored prefixes are put into them. Drop-in
subclasses of mlx-lm's caches that can allocate once, and a pool of slots."""

from .kv_cache import CapacityWarning, FixedStep, Geometric, Growth, KVCache, QuantizedKVCache
from .manager import (
    AdvanceError,
    AppendError,
    KVCacheManager,
    KVError,
    LayerView,
    NoFreeSlotError,
    SequenceState,
    SequenceTooLongError,
    UnknownSequenceError,
)
from .prompt_cache import CacheOffsetError, make_prompt_cache, trim_to_offset
from .rotating import BatchRotatingKVCache, RotatingKVCache

__all__ = [
    "AdvanceError",
    "AppendError",
    "BatchRotatingKVCache",
    "CacheOffsetError",
    "CapacityWarning",
    "FixedStep",
    "Geometric",
    "Growth",
    "KVCache",
    "KVCacheManager",
    "KVError",
    "LayerView",
    "NoFreeSlotError",
    "QuantizedKVCache",
    "RotatingKVCache",
    "SequenceState",
    "SequenceTooLongError",
    "UnknownSequenceError",
    "make_prompt_cache",
    "trim_to_offset",
]
