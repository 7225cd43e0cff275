"""What the processes store and look up: chains of known bytes, many of which begin alike."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

from kit.storage import Story
from kit.storage.pages import BLOCK
from omlx_cache_storage.format.names import name_of, page_path
from omlx_cache_storage.keys import KeyChain, as_tokens

FAMILIES = 3
CHAINS = 16
LENGTH = 24
BEGINNING = 6
_PAYLOAD_BYTES = (3_000, 9_000, 30_000)
_HEADER_BYTES = 16 * 1024
_DISK_BLOCK = 4096
_MOMENT_SECONDS = 0.7


class Chain(Story):
    """`LENGTH` pages of a family, a namespace; its chains have the first `BEGINNING` in common."""

    def __init__(self, family: int, number: int) -> None:
        super().__init__(f"family {family}", nbytes=_PAYLOAD_BYTES[family], blocks=0)
        self.family, self.number = family, number
        alike = list(range(BEGINNING * BLOCK))
        own = (10**6 * (number + 1) + token for token in range((LENGTH - BEGINNING) * BLOCK))
        self.chain = KeyChain(self.namespace, as_tokens([*alike, *own]), BLOCK)

    def path(self, directory: Path, number: int) -> str:
        """Return where the file of a page lies."""
        return page_path(directory, self.namespace, name_of(self.meta(number)))

    def numbers(self, draw: random.Random) -> list[int]:
        """Return the pages of a prefix."""
        return list(range(1, draw.randrange(1, LENGTH + 1) + 1))


def inode(path: str) -> int:
    """Return which file lies at a path, 0 for none."""
    try:
        return os.lstat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return 0


def working_set_bytes() -> int:
    """Return what the files of all chains that `Choice` chooses again and again take."""
    pages = BEGINNING + CHAINS * (LENGTH - BEGINNING)
    return pages * sum(
        -(-(_HEADER_BYTES + nbytes) // _DISK_BLOCK) * _DISK_BLOCK for nbytes in _PAYLOAD_BYTES
    )


class Choice:
    """Which chain a process takes next: every other time the one that all take at this moment.

    With `fresh` each moment, and each process, has chains that nobody had before.
    """

    def __init__(self, draw: random.Random, *, fresh: bool) -> None:
        self._draw = draw
        self._own = self._new() if fresh else None

    @staticmethod
    def _new() -> Iterator[int]:
        first = os.getpid() * 10**4
        return iter(range(first, first + 10**4))

    def next(self) -> Chain:
        moment = int(time.monotonic() / _MOMENT_SECONDS)
        if self._draw.random() < 0.5:
            # Without a process's own seed: the same for all.
            everybody = random.Random(moment)
            number = moment if self._own else everybody.randrange(CHAINS)
            return Chain(everybody.randrange(FAMILIES), number)
        number = self._draw.randrange(CHAINS) if self._own is None else 10**8 + next(self._own)
        return Chain(self._draw.randrange(FAMILIES), number)
