"""What it costs to write pages into a directory that others use too."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from omlx_cache.tools.bench.rows import Row
from omlx_cache.tools.bench.shared_pages import KIB, MIB, pages_of, store_all
from omlx_cache.tools.bench.sizes import Size
from omlx_cache.tools.bench.timing import in_turn
from omlx_cache_storage.cold.changes import Change
from omlx_cache_storage.cold.ledger import WAIT_SECONDS, Ledger
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.page import Page

LIMIT = 1 << 40
HEADER = bytes(16 * KIB)
"""As much as a page's file has before the payload."""
UNTOLD, RAW = "the same, telling nobody", "bare files of that size"


class Silent(Ledger):
    """A ledger that takes no lock, tells nothing and asks for nothing once it is `silent`."""

    silent = False

    @contextlib.contextmanager
    def held(self, seconds: float = WAIT_SECONDS) -> Iterator[None]:
        if self.silent:
            yield
            return
        with super().held(seconds):
            yield

    def news(self) -> list[Change] | None:
        return [] if self.silent else super().news()

    def append(self, changes: Iterable[Change]) -> None:
        if not self.silent:
            super().append(changes)


class Untold(ColdTier):
    """A tier that keeps what it does to itself, as if nobody else used the directory."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        super().__init__(directory, limit_bytes)
        self._silent = self.sharing.ledger = Silent(directory, self._fs)

    def open(self, budget: Callable[[int], int] | None = None) -> None:
        super().open(budget)
        self._silent.silent = True


def measure_shared_writes(size: Size, directory: Path) -> list[Row]:
    """Write small and large pages, against a tier that takes no lock and keeps no ledger, and
    against files that are written and renamed."""
    rows = []
    for name, nbytes, count in (
        ("4 KiB", 4 * KIB, max(4, size.files // 40)),
        ("1 MiB", MIB, max(2, size.files // 400)),
    ):
        rows += _rows(f"{count:,} pages of {name}", nbytes, count, size.runs, directory / name)
    return rows


def _rows(what: str, nbytes: int, count: int, runs: int, directory: Path) -> list[Row]:
    numbers = itertools.count()
    told = ColdTier(directory / "told", LIMIT)
    untold = Untold(directory / "untold", LIMIT)
    raw = directory / "raw"
    raw.mkdir(parents=True)
    made: list[Page] = []

    def prepare() -> None:
        made[:] = pages_of(next(numbers), count, nbytes)

    def through(tier: ColdTier) -> Callable[[], None]:
        tier.open()

        def write() -> None:
            if store_all(tier, made) != count:
                raise RuntimeError("a page was there before it was written")

        return write

    works = {"ours": through(told), "untold": through(untold), "raw": lambda: _write(made, raw)}
    try:
        times = in_turn(works, runs, before=prepare)
    finally:
        told.close()
        untold.close()
    return [
        Row(f"writing {what}", times["ours"], UNTOLD, times["untold"], count * nbytes),
        Row(f"writing {what}", times["ours"], RAW, times["raw"], count * nbytes, limit=True),
    ]


def _write(pages: Sequence[Page], directory: Path) -> None:
    for page in pages:
        path = directory / page.meta.key.hex()
        temporary = path.with_suffix(".tmp")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, HEADER)
            os.write(fd, page.payload)
        finally:
            os.close(fd)
        os.rename(temporary, path)
