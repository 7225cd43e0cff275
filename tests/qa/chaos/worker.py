"""`contract.worker` that may die at any call and have a flaw: `python -m qa.chaos.worker SETTINGS
ODDS SEED FLAW`. It also takes the tasks `audit` and `clock`.

A flaw is named by the verdict that it must get, and shows that the checker sees it.
"""

import fcntl
import functools
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from contract import worker
from contract.arithmetic import Arithmetic
from omlx_cache import BlockStore, PrefixCache
from omlx_cache_storage.cold.page_reader import PageReader
from omlx_cache_storage.page import Page, PageId

from .faults import ShiftedClock

DEADLY: tuple[tuple[ModuleType, str], ...] = (
    *((os, name) for name in (
        "pwrite", "pwritev", "write", "writev", "open", "rename", "replace", "link", "unlink",
        "remove", "mkdir", "rmdir", "ftruncate", "truncate", "posix_fallocate", "fsync", "utime",
        "close",
    )),
    (fcntl, "flock"),
    (fcntl, "lockf"),
)  # fmt: skip
Task = Callable[..., dict[str, Any]]


def deadly(call: Callable[..., Any], draw: random.Random, odds: float) -> Callable[..., Any]:
    """Return a call that is the last one at `odds`, before or behind it: random kills from outside
    seldom meet the moment between two steps of a change."""

    @functools.wraps(call)
    def deadly(*arguments: Any, **named: Any) -> Any:
        chance = draw.random()
        if chance < odds / 2:
            _die()
        done = call(*arguments, **named)
        if chance > 1 - odds / 2:
            _die()
        return done

    return deadly


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    # The signal comes at the latest when the call returns; nothing more is done.
    signal.pause()


def audit(model: Arithmetic, cache: PrefixCache, store: BlockStore) -> dict[str, Any]:
    """Say what the store counts."""
    store.refresh()
    usage = store.cold.usage()
    told = {"nbytes": usage.nbytes, "limit_bytes": usage.limit_bytes,
            "corrupt": usage.corrupt_pages, "state": usage.state, "broken": ""}  # fmt: skip
    for tier in (store.hot, store.cold):
        try:
            tier.check_integrity()
        except AssertionError as error:
            told["broken"] = str(error)
    return told


def careless() -> None:
    """Serve what was read without a look at the checksum, one bit of it another one."""

    def unverified(self: PageReader, pieces: Sequence[Any]) -> None:
        self._fs.read_into(self._fd, self._header.data_offset, pieces)
        memoryview(pieces[0])[0] ^= 1
        self.was_read = True

    PageReader._fill = unverified  # type: ignore[method-assign]


def deaf() -> None:
    """Know only of the pages that this store was given itself."""
    own: set[PageId] = set()
    put, find_all = BlockStore.put, BlockStore.find_all

    def noted(self: BlockStore, page: Page, *given: Any) -> bool:
        own.add(page.meta.id)
        return put(self, page, *given)

    def found(self: BlockStore, pages: Sequence[PageId], **options: bool) -> Sequence[Any]:
        known = find_all(self, pages, **options)
        return [info if page in own else None for page, info in zip(pages, known, strict=True)]

    BlockStore.put, BlockStore.find_all = noted, found  # type: ignore[method-assign]


def before_asking(flaw: Callable[[Path, int], object]) -> Callable[[], None]:
    """Do something with the directory, whose limit it is told, before each request."""

    def install() -> None:
        ask = worker.do_ask

        def flawed(model: Arithmetic, cache: PrefixCache, store: BlockStore, **task: Any) -> Any:
            flaw(store.settings.cold_dir, store.cold.usage().limit_bytes)
            return ask(model, cache, store, **task)

        worker.do_ask = flawed

    return install


def end(directory: Path, limit: int) -> None:
    raise RuntimeError("a flaw")


FLAWS: dict[str, Callable[[], None]] = {
    "wrong": careless,
    "lost": deaf,
    "over": before_asking(lambda path, limit: (path / "stranger").write_bytes(bytes(limit))),
    "left": before_asking(lambda path, limit: (path / f".tmp-{os.getpid()}-mine-0").touch()),
    "stuck": before_asking(end),
}


def main(odds: float, seed: str, flaw: str) -> None:
    clock, draw = ShiftedClock(), random.Random(seed)

    def set_clock(*_: object, offset_ns: int) -> dict[str, Any]:
        clock.offset_ns = offset_ns
        return {}

    clock.start()
    worker.do_audit, worker.do_clock = audit, set_clock  # type: ignore[attr-defined]
    if flaw:
        FLAWS[flaw]()
    for module, name in DEADLY if odds else ():
        if call := getattr(module, name, None):
            setattr(module, name, deadly(call, draw, odds))
    worker.main()


if __name__ == "__main__":
    main(float(sys.argv[2]), *sys.argv[3:])
