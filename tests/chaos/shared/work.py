"""What a writer, a reader and a look-up do with a store on the shared directory, and see of it."""

import random
from pathlib import Path
from typing import Any, Protocol

from kit.storage import commit, expected_payload
from omlx_cache import BlockStore
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.page import PageId

from .chains import Chain, Choice, inode

FLUSH_SECONDS = 20.0


class Work(Protocol):
    def step(self) -> dict[str, Any]:
        """Do a little, and return what is to be told."""
        ...


def refresh(store: BlockStore) -> None:
    """Have a store look what others did, as a look-up that ends short does."""
    again = getattr(store, "refresh", None)
    if again is not None:
        again()


def durable(store: BlockStore, directory: Path, chain: Chain, numbers: list[int]) -> dict[str, Any]:
    """Return, of pages that were flushed, those that the disk has, each with its inode, and those
    that the store's own cold tier does not know of."""
    known = store.cold.find_all(chain.ids(*numbers))
    there = [number for number, info in zip(numbers, known, strict=True) if info is not None]
    inodes = [[number, inode(chain.path(directory, number))] for number in there]
    return {
        "chain": [chain.family, chain.number],
        "durable": [pair for pair in inodes if pair[1]],
        "lacking": sorted(set(numbers) - set(there)),
    }


class Writer:
    """Stores prefixes of chains and flushes most of them."""

    def __init__(
        self, store: BlockStore, directory: Path, draw: random.Random, fresh: bool
    ) -> None:
        self._store, self._directory, self._draw = store, directory, draw
        self._choice = Choice(draw, fresh=fresh)

    def step(self) -> dict[str, Any]:
        store, chain = self._store, self._choice.next()
        numbers = chain.numbers(self._draw)
        new = sum(commit(store, chain, *numbers))
        if self._draw.random() < 0.1:
            store.demote(chain.ids(numbers[-1]))
        told: dict[str, Any] = {"stored": new, "asked": len(numbers)}
        if self._draw.random() < 0.7:
            told |= flushed(store)
            if told["flushed"]:
                told |= durable(store, self._directory, chain, numbers)
        return told


def flushed(store: BlockStore) -> dict[str, Any]:
    """Flush, and say how many pages were dropped while the disk failed: they keep a flush False
    until they are stored again."""
    done = store.flush(FLUSH_SECONDS)
    writer = store.stats().writer
    return {"flushed": done, "dropped": 0 if writer is None else writer.dropped_pages}


class Reader:
    """Looks chains up, reads what is there, and compares every byte."""

    def __init__(self, store: BlockStore, draw: random.Random, fresh: bool) -> None:
        self._store, self._draw = store, draw
        self._choice = Choice(draw, fresh=fresh)

    def step(self) -> dict[str, Any]:
        store, chain = self._store, self._choice.next()
        pages = chain.ids(*chain.numbers(self._draw))
        refresh(store)
        known = store.find_all(pages)
        found = [page for page, info in zip(pages, known, strict=True) if info is not None]
        told = compare(store, found, chain.nbytes)
        store.touch(found)
        return {"looked up": len(pages), **told}


def compare(store: BlockStore, pages: list[PageId], nbytes: int) -> dict[str, Any]:
    """Read pages from the disk, and return how many had the bytes that they must have, which had
    others, and how many could not be read, by the reason."""
    right, wrong = 0, []
    unread: dict[str, int] = {}
    for page in pages:
        try:
            with store.reading(page) as opened:
                payload = bytearray(opened.meta.nbytes)
                opened.read_into([payload])
        except PageError as error:
            unread[error.reason] = unread.get(error.reason, 0) + 1
            continue
        if payload == expected_payload(page, nbytes):
            right += 1
        else:
            wrong.append(f"{page.key.hex()[:16]} ({len(payload)} bytes)")
    return {"read": right, "wrong": wrong, "unread": unread}


def look(
    store: BlockStore, directory: Path, family: int, number: int, pages: Any
) -> dict[str, Any]:
    """Look up pages that another process reported durable, each with the inode that it had.

    `missing` are those that lay there before and after, as the very file, and were not found;
    `gone` had no file any more, `replaced` another one.
    """
    chain = Chain(family, number)
    numbers = [int(page) for page, _ in pages]
    before = [inode(chain.path(directory, page)) for page in numbers]
    refresh(store)
    known = store.find_all(chain.ids(*numbers))
    after = [inode(chain.path(directory, page)) for page in numbers]
    missing, gone, replaced, found = [], [], [], []
    for (page, was), first, info, last in zip(pages, before, known, after, strict=True):
        if info is not None:
            found.append(page)
        elif first == was == last:
            missing.append(page)
        if not last:
            gone.append(page)
        elif last != was:
            replaced.append(page)
    on_disk = [page for page in chain.ids(*found) if store.cold and store.cold.info(page)]
    told = compare(store, on_disk[-2:], chain.nbytes)
    return {"found": len(found), "missing": missing, "gone": gone, "replaced": replaced, **told}
