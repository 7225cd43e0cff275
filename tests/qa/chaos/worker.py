"""A process on the shared directory: `python -m qa.chaos.worker JOB`, JOB being JSON.

Stores or reads chains of known bytes until its standard input ends or says so. A line of JSON there
is a command, one on standard output says what was done: `{"did": ...}`, and what belongs to it.
"""

import contextlib
import fcntl
import functools
import json
import logging
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kit.storage import Story, commit, expected_payload, open_store
from kit.storage.pages import BLOCK
from omlx_cache import BlockStore
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.format.names import name_of, page_path
from omlx_cache_storage.keys import KeyChain, as_tokens
from omlx_cache_storage.page import PageId

from .faults import ShiftedClock

KIB = 1024
FAMILIES, CHAINS, LENGTH, BEGINNING = 3, 16, 24, 6
PAYLOAD_BYTES = (3_000, 9_000, 30_000)
MOMENT_SECONDS = 0.7
FLUSH_SECONDS, CLOSE_SECONDS = 20.0, 30.0
DEADLY: tuple[tuple[ModuleType, str], ...] = (
    *((os, name) for name in (
        "pwrite", "pwritev", "write", "writev", "open", "rename", "replace", "link", "unlink",
        "remove", "mkdir", "rmdir", "ftruncate", "truncate", "posix_fallocate", "fsync", "utime",
        "close",
    )),
    (fcntl, "flock"),
    (fcntl, "lockf"),
)  # fmt: skip


class Chain(Story):
    """`LENGTH` pages of a family, a namespace; its chains have the first `BEGINNING` in common."""

    def __init__(self, family: int, number: int) -> None:
        super().__init__(f"family {family}", nbytes=PAYLOAD_BYTES[family], blocks=0)
        self.family, self.number = family, number
        alike = list(range(BEGINNING * BLOCK))
        own = (10**6 * (number + 1) + token for token in range((LENGTH - BEGINNING) * BLOCK))
        self.chain = KeyChain(self.namespace, as_tokens([*alike, *own]), BLOCK)

    def inode(self, directory: Path, number: int) -> int:
        """Return which file a page has, 0 for none."""
        try:
            return os.lstat(page_path(directory, self.namespace, name_of(self.meta(number)))).st_ino
        except (FileNotFoundError, NotADirectoryError):
            return 0


class Deadly:
    """kill -9 where it hurts: each call of `DEADLY` is the last one at `odds`, before or behind it.

    Random kills from outside seldom meet the moment between two steps of a change.
    """

    def __init__(self, draw: random.Random) -> None:
        self.odds = 0.0
        self._draw = draw
        for module, name in DEADLY:
            call = getattr(module, name, None)
            if call is not None:
                setattr(module, name, self._deadly(call))

    def _deadly(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def deadly(*arguments: Any, **named: Any) -> Any:
            chance, odds = self._draw.random(), self.odds
            if chance < odds / 2:
                _die()
            done = call(*arguments, **named)
            if chance > 1 - odds / 2:
                _die()
            return done

        return deadly


class Worker:
    """Works, and does as it is told between two steps. Every method returns what is to be told."""

    def __init__(self, job: dict[str, Any], store: BlockStore, clock: ShiftedClock) -> None:
        self.store, self.directory = store, Path(job["directory"])
        self._clock, self._odds = clock, job["odds"]
        self._draw = random.Random(job["seed"])
        self._deadly = Deadly(random.Random(job["seed"])) if job["odds"] else None
        # With room for everything, chains are those that nobody had before.
        self._own = iter(range(10**8 + os.getpid() * 10**4, 10**12)) if job["roomy"] else None
        self.step = self.write if job["role"].endswith("writer") else self.read

    def run(self) -> None:
        """Work until told to end."""
        resting, said = False, b""
        while True:
            while b"\n" not in said and select.select([0], [], [], None if resting else 0)[0]:
                said += os.read(0, 65536) or b'{"do": "end"}\n'
            if b"\n" not in said:
                say("step", **self.step())
                continue
            line, said = said.split(b"\n", 1)
            command = json.loads(line)
            what = command.pop("do")
            resting = what == "rest" or (resting and what != "go")
            if self._deadly is not None:
                self._deadly.odds = 0.0 if resting or what == "end" else self._odds
            if what == "end":
                return
            answers = {"rest": self.flush, "look": self.look, "audit": self.audit}
            if what == "clock":
                self._clock.offset_ns = command["offset_ns"]
            say(what, **(answers[what](**command) if what in answers else {}))

    def next_chain(self) -> Chain:
        """Return a chain: every other time the one that all processes take at this moment."""
        moment = int(time.monotonic() / MOMENT_SECONDS)
        together = self._draw.random() < 0.5
        draw = random.Random(moment) if together else self._draw
        if self._own is None:
            number = draw.randrange(CHAINS)
        else:
            number = moment if together else next(self._own)
        return Chain(draw.randrange(FAMILIES), number)

    def numbers(self) -> list[int]:
        """Return the pages of a prefix."""
        return list(range(1, self._draw.randrange(1, LENGTH + 1) + 1))

    def write(self) -> dict[str, Any]:
        """Store the prefix of a chain, and flush it most of the time."""
        store, chain, numbers = self.store, self.next_chain(), self.numbers()
        told: dict[str, Any] = {"stored": sum(commit(store, chain, *numbers))}
        if self._draw.random() < 0.1:
            store.demote(chain.ids(numbers[-1]))
        if self._draw.random() < 0.7:
            told |= self.flush()
        if told.get("flushed"):
            known = store.cold.find_all(chain.ids(*numbers))
            there = [page for page, info in zip(numbers, known, strict=True) if info is not None]
            inodes = [[page, chain.inode(self.directory, page)] for page in there]
            told["chain"] = [chain.family, chain.number]
            told["durable"] = [pair for pair in inodes if pair[1]]
            told["lacking"] = sorted(set(numbers) - set(there))
        return told

    def read(self) -> dict[str, Any]:
        """Look a chain up and compare every byte that is there."""
        store, chain = self.store, self.next_chain()
        pages = chain.ids(*self.numbers())
        store.refresh()
        known = store.find_all(pages)
        found = [page for page, info in zip(pages, known, strict=True) if info is not None]
        told = self._compare(found, chain.nbytes)
        store.touch(found)
        return told

    def flush(self) -> dict[str, Any]:
        """Flush. Pages that were dropped while the disk failed keep a flush False until they are
        stored again."""
        done = self.store.flush(FLUSH_SECONDS)
        return {"flushed": done, "dropped": self.store.stats().writer.dropped_pages}

    def look(self, chain: Sequence[int], pages: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Look up pages that another process reported durable, each with the inode that it had.

        `missing` are those that lay there before and after, as the very file, and were not found;
        `gone` have no file any more.
        """
        story = Chain(*chain)
        numbers = [page for page, _ in pages]
        before = [story.inode(self.directory, page) for page in numbers]
        self.store.refresh()
        known = self.store.find_all(story.ids(*numbers))
        after = [story.inode(self.directory, page) for page in numbers]
        found = [page for page, info in zip(numbers, known, strict=True) if info is not None]
        missing = [
            page
            for (page, was), first, info, last in zip(pages, before, known, after, strict=True)
            if info is None and first == was == last
        ]
        gone = [page for page, last in zip(numbers, after, strict=True) if not last]
        on_disk = [page for page in story.ids(*found) if self.store.cold.info(page)]
        told = self._compare(on_disk[-2:], story.nbytes)
        return {"found": len(found), "missing": missing, "gone": gone, **told}

    def _compare(self, pages: Sequence[PageId], nbytes: int) -> dict[str, Any]:
        """Read pages; return how many had the bytes that they must have, and which were wrong."""
        right, wrong = 0, []
        for page in pages:
            try:
                with self.store.reading(page) as opened:
                    payload = bytearray(opened.meta.nbytes)
                    opened.read_into([payload])
            except PageError as error:
                # Nobody damages any; one that was evicted meanwhile is missing.
                if error.reason == "corrupt":
                    wrong.append(f"{page.key.hex()[:16]} (corrupt)")
                continue
            if payload == expected_payload(page, nbytes):
                right += 1
            else:
                wrong.append(f"{page.key.hex()[:16]} ({len(payload)} bytes)")
        return {"read": right, "wrong": wrong}

    def audit(self) -> dict[str, Any]:
        """Say what the store counts."""
        self.store.refresh()
        usage = self.store.cold.usage()
        told = {"nbytes": usage.nbytes, "limit_bytes": usage.limit_bytes,
                "corrupt": usage.corrupt_pages, "state": usage.state}  # fmt: skip
        for tier in (self.store.hot, self.store.cold):
            try:
                tier.check_integrity()
            except AssertionError as error:
                told["broken"] = str(error)
        return told


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    # The signal comes at the latest when the call returns; nothing more is done.
    signal.pause()


def say(did: str, **words: Any) -> None:
    whole = (json.dumps({"did": did, **words}) + "\n").encode()
    while whole:
        whole = whole[os.write(1, whole) :]


def main() -> None:
    job = json.loads(sys.argv[1])
    for name in ("omlx_cache", "omlx_cache_storage"):
        # What fails on purpose is a warning; an error nobody expects, and is told at the end.
        logging.getLogger(name).setLevel(logging.ERROR)
    with contextlib.suppress(PermissionError):
        # Who measures must not wait behind all that work.
        os.nice(5)
    clock = ShiftedClock(job["offset_ns"])
    clock.start()
    store = open_store(
        Path(job["directory"]),
        hot_bytes=512 * KIB,
        queue_bytes=256 * KIB,
        cold_bytes=job["budget"],
        write_policy="through",
        commit_wait_seconds=86400,
    )
    say("ready")
    Worker(job, store, clock).run()
    say("closed", clean=store.close(CLOSE_SECONDS))


if __name__ == "__main__":
    main()
