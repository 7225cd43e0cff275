"""Keeping Python's garbage collector away from the making of many objects that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Have no automatic garbage collection until the block ends; one that was off stays off.

    An index of many files is nothing but objects that stay, and the collector would go through all
    of them several times over while they become more: a third of a start-up. Two threads may be in
    such blocks at once: the first that found it on puts it on again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
