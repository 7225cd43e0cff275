"""Processes with a flaw, by which the checker shows that it sees one.

`python -m chaos.shared.flawed JOB` has the flaw that the environment's `CHAOS_FLAW` names.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from omlx_cache import BlockStore
from omlx_cache_storage.cold.reader import PageReader
from omlx_cache_storage.page import PageId

from . import work, worker

VARIABLE = "CHAOS_FLAW"


def _deaf() -> None:
    """Knows only of the pages that it stored itself."""
    own: set[PageId] = set()
    commit, find_all = work.commit, BlockStore.find_all

    def noted(store: BlockStore, story: Any, *numbers: int) -> list[bool]:
        own.update(story.ids(*numbers))
        return commit(store, story, *numbers)

    def found(self: BlockStore, pages: Sequence[PageId], **options: bool) -> Sequence[Any]:
        known = find_all(self, pages, **options)
        return [info if page in own else None for page, info in zip(pages, known, strict=True)]

    work.commit = noted
    BlockStore.find_all = found  # type: ignore[method-assign]


def _careless() -> None:
    """Serves what it read without a look at the checksum, one bit of it another one."""

    def unverified(self: PageReader, pieces: Sequence[Any]) -> None:
        self._fs.read_into(self._fd, self._header.data_offset, pieces)
        memoryview(pieces[0])[0] ^= 1
        self.was_read = True

    PageReader._fill = unverified  # type: ignore[method-assign]


def _greedy() -> None:
    """Puts a file into the directory that nobody counts."""
    step = work.Writer.step

    def greedy(self: work.Writer) -> dict[str, Any]:
        with open(self._directory / "stranger", "wb") as file:
            file.write(bytes(self._store.cold.usage().limit_bytes))
        return step(self)

    work.Writer.step = greedy  # type: ignore[method-assign]


def _untidy() -> None:
    """Leaves a temporary file, and lives."""
    step = work.Writer.step

    def untidy(self: work.Writer) -> dict[str, Any]:
        told = step(self)
        (self._directory / f".tmp-{os.getpid()}-mine-0").touch()
        return told

    work.Writer.step = untidy  # type: ignore[method-assign]


def _hasty() -> None:
    """Ends with an error."""

    def hasty(self: work.Writer) -> dict[str, Any]:
        raise RuntimeError("a flaw")

    work.Writer.step = hasty  # type: ignore[method-assign]


FLAWS: dict[str, Callable[[], None]] = {
    "wrong": _careless,
    "lost": _deaf,
    "over": _greedy,
    "left": _untidy,
    "stuck": _hasty,
}
"""By the verdict that they must get."""


if __name__ == "__main__":
    FLAWS[os.environ[VARIABLE]]()
    worker.main()
