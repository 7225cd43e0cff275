"""What the working caches raise and warn; every message names the limit that was met."""


class KVError(Exception):
    """Base of all errors of `omlx_cache.kv`."""


class CacheOffsetError(KVError, ValueError):
    """A cache's offset does not lie within its buffer: its content cannot be trusted."""


class NoFreeSlotError(KVError):
    """Every slot of the pool is taken by a sequence that has not been released."""


class SequenceTooLongError(KVError, ValueError):
    """A sequence was asked to hold more tokens than it was allocated, or a slot can hold."""


class UnknownSequenceError(KVError, LookupError):
    """A sequence id that was never given out, or that has been released."""


class AppendError(KVError, ValueError):
    """Keys or values of a wrong shape or dtype, or for a layer that does not exist."""


class AdvanceError(KVError, ValueError):
    """An advance past what every layer has appended."""


class CapacityWarning(UserWarning):
    """A cache outgrew the `max_size` that it was allocated for, and reallocates from here on."""
