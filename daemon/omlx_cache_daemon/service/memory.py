"""What the C library keeps of freed memory goes back to the system, where it can be asked to."""

import contextlib
import ctypes
import gc


def give_back_memory() -> None:
    """Have freed memory given back; after work that took much of it. Raises nothing."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        # glibc's own; elsewhere memory is given back as it is freed.
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
