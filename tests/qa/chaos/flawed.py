"""Processes with a flaw, by which the checker shows that it sees one.

`python -m qa.chaos.flawed JOB` has the flaw that the environment's `CHAOS_FLAW` names: the verdict
that it must get.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omlx_cache import BlockStore
from omlx_cache_storage.cold.reader import PageReader
from omlx_cache_storage.page import PageId

from . import worker

VARIABLE = "CHAOS_FLAW"


def _deaf() -> None:
    """Knows only of the pages that it stored itself."""
    own: set[PageId] = set()
    commit, find_all = worker.commit, BlockStore.find_all

    def noted(store: BlockStore, story: Any, *numbers: int) -> list[bool]:
        own.update(story.ids(*numbers))
        return commit(store, story, *numbers)

    def found(self: BlockStore, pages: Sequence[PageId], **options: bool) -> Sequence[Any]:
        known = find_all(self, pages, **options)
        return [info if page in own else None for page, info in zip(pages, known, strict=True)]

    worker.commit = noted
    BlockStore.find_all = found  # type: ignore[method-assign]


def _careless() -> None:
    """Serves what it read without a look at the checksum, one bit of it another one."""

    def unverified(self: PageReader, pieces: Sequence[Any]) -> None:
        self._fs.read_into(self._fd, self._header.data_offset, pieces)
        memoryview(pieces[0])[0] ^= 1
        self.was_read = True

    PageReader._fill = unverified  # type: ignore[method-assign]


def _before_writing(flaw: Callable[[Path, int], object]) -> Callable[[], None]:
    """Have writers do something with the directory, whose limit it is told, before each step."""

    def install() -> None:
        write = worker.Worker.write

        def flawed(self: worker.Worker) -> dict[str, Any]:
            flaw(self.directory, self.store.cold.usage().limit_bytes)
            return write(self)

        worker.Worker.write = flawed  # type: ignore[method-assign]

    return install


def _ends(directory: Path, limit: int) -> None:
    raise RuntimeError("a flaw")


FLAWS: dict[str, Callable[[], None]] = {
    "wrong": _careless,
    "lost": _deaf,
    "over": _before_writing(lambda path, limit: (path / "stranger").write_bytes(bytes(limit))),
    "left": _before_writing(lambda path, limit: (path / f".tmp-{os.getpid()}-mine-0").touch()),
    "stuck": _before_writing(_ends),
}


if __name__ == "__main__":
    FLAWS[os.environ[VARIABLE]]()
    worker.main()
