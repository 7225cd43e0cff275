"""Working caches: what a running request appends to, and a restored prefix is put into.

Drop-in subclasses of mlx-lm's caches that can allocate once, and a pool of slots.
"""

from .capacity import CapacityWarning, FixedStep, Geometric, Growth
from .factory import make_prompt_cache
from .kv_cache import KVCache
from .manager import KVCacheManager
from .quantized import QuantizedKVCache
from .rotating import BatchRotatingKVCache, RotatingKVCache
from .sequence import (
    AdvanceError,
    AppendError,
    KVError,
    NoFreeSlotError,
    SequenceState,
    SequenceTooLongError,
    UnknownSequenceError,
)
from .trim import CacheOffsetError, trim_to_offset
from .view import LayerView

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
