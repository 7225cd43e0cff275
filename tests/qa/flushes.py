"""A campaign of flushes: what `flush` calls durable is whole after kill -9 and after power cuts.

`PYTHONPATH=tests python -m qa.flushes --count 5000 --seed 1` prints a table and ends with 1 when a
promise was broken. Each round has a directory, one to four threads that commit beside each other,
and an end: a process that is killed and followed by another one, or a power cut that is replayed.
The journal knows what was promised, and what may have taken it away since.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import forks
from kit.storage import Story, expected_payload, fetch, open_store, store_page
from kit.units import KIB
from omlx_cache import BlockStore
from omlx_cache_storage.cold.disk import Durability, FileSystem, StrPath
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.format.names import parse_name
from omlx_cache_storage.page import Buffer
from qa.chaos.power import Disk, RecordingDisk

BLOCKS = 12
TURNS = 12
LIVES = 4
CUTS = 3
FLUSH_SECONDS = 60.0
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DirectoryUse:
    """How one directory is used. `tight`: its budget evicts; `disturbed`: so do clears, evictions
    by request and departures from memory beside the commits."""

    seed: int
    threads: int
    tight: bool
    disturbed: bool
    options: dict[str, Any]

    @classmethod
    def drawn(cls, seed: int, durability: Durability) -> "DirectoryUse":
        draw = random.Random(f"plan {seed}")
        tight, hot = draw.random() < 0.3, draw.choice([512, 1024, 2048]) * KIB
        options = {
            "block_size": 16,
            "hot_bytes": hot,
            "queue_bytes": draw.choice([64 * KIB, 256 * KIB, hot]),
            "commit_wait_seconds": draw.choice([2, 86400]),
            "write_policy": draw.choice(["through", "lazy"]),
            "cold_bytes": (3 if tight else 512) * KIB * KIB,
            "durability": durability,
        }
        return cls(seed, draw.randrange(1, 5), tight, draw.random() < 0.5, options)


class Journal:
    """What happened, in order. `_lock` guards `entries`; any thread may add to them.

    With `out` each entry is written there before what it announces is done. `at` is the position in
    the log of a recorded disk.
    """

    def __init__(self, entries: Sequence[Entry] = (), *, out: int | None = None) -> None:
        self.entries = list(entries)
        self.disk: RecordingDisk | None = None
        self._out = out
        self._lock = threading.Lock()

    def add(self, kind: str, **fields: Any) -> int:
        """Return the number of a new entry."""
        with self._lock:
            at = 0 if self.disk is None else self.disk.position
            entry = {"kind": kind, "at": at, **fields}
            if self._out is not None:
                # Less than PIPE_BUF: whole or not at all.
                os.write(self._out, json.dumps(entry).encode() + b"\n")
            self.entries.append(entry)
            return len(self.entries) - 1


class WatchedDeletes(FileSystem):
    """Announces each page that is about to be deleted."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    def remove(self, path: StrPath) -> None:
        name = parse_name(os.path.basename(path))
        if name is not None:
            self._journal.add("removed", page=name.id.key.hex())
        super().remove(path)


class Unsynced(FileSystem):
    """Syncs nothing: the replay of a cut knows what was asked for."""

    def write(self, path: StrPath, pieces: Sequence[Buffer], durability: Durability) -> int:
        return super().write(path, pieces, "none")

    def sync_directory(self, path: StrPath, durability: Durability) -> None:
        super().sync_directory(path, "none")


class Recorded(WatchedDeletes, RecordingDisk, Unsynced):
    """Records what it is asked for, and announces what is deleted."""


class FlushingWork:
    """Threads that commit and flush, each sequences of its own, and disturb those of others.

    The journal's lock does not guard `_names`: threads only append to it.
    """

    def __init__(self, plan: DirectoryUse, life: int, store: BlockStore, journal: Journal) -> None:
        self._plan, self._life = plan, life
        self._store, self._journal = store, journal
        self._names: list[tuple[str, int]] = []

    def run(self) -> None:
        with ThreadPoolExecutor(self._plan.threads) as threads:
            list(threads.map(self._take_turns, range(self._plan.threads)))

    def _take_turns(self, number: int) -> None:
        draw, own = random.Random(f"{self._plan.seed} {self._life} {number}"), []
        with ThreadPoolExecutor(1) as beside:
            for turn in range(TURNS):
                if own and draw.random() < 0.5:
                    name, nbytes = draw.choice(own[-3:])
                else:
                    name = f"{self._plan.seed}.{self._life}.{number}.{turn}"
                    nbytes = draw.choice([4, 16, 48]) * KIB
                    own.append((name, nbytes))
                    self._names.append(own[-1])
                disturbed = []
                if self._plan.disturbed and draw.random() < 0.5:
                    # What is being stored now, here or by others, or was a moment ago.
                    which = draw.choice([(name, nbytes), draw.choice(self._names[-8:])])
                    kind = draw.choice(["clear", "clear", "evict", "leave"])
                    disturbed.append(beside.submit(self._disturb, kind, *which))
                self._promise(name, nbytes, draw.randrange(1, BLOCKS + 1))
                for done in disturbed:
                    done.result()

    def _promise(self, name: str, nbytes: int, count: int) -> None:
        """Commit a sequence, flush, and note what that said of the pages that were accepted."""
        store, story = self._store, Story(name, nbytes=nbytes)
        since = self._journal.add("commit", story=name)
        ids, accepted = story.ids(*range(1, count + 1)), 0
        for page in story.pages(*range(1, count + 1)):
            if not store_page(store, page, set(ids)) and store.find(page.meta.id) is None:
                break
            accepted += 1
        # A page that is here already is used, which has it written where the disk evicted it.
        store.touch(ids[:accepted])
        store.touch(ids[:accepted], used=False)
        self._journal.add("committed", story=name)
        if not store.flush(FLUSH_SECONDS):
            self._journal.add("false", story=name)
            return
        assert store.cold is not None
        lacking = [n for n, page in enumerate(ids[:accepted], 1) if store.cold.info(page) is None]
        self._journal.add(
            "flushed",
            story=name,
            nbytes=nbytes,
            pages=accepted,
            since=since,
            lacking=lacking,
            rejected=store.cold.usage().refused_pages,
        )

    def _disturb(self, kind: str, name: str, nbytes: int) -> None:
        store, story = self._store, Story(name, nbytes=nbytes)
        of = self._journal.add(kind, story=name, nbytes=nbytes)
        if kind == "clear":
            store.clear(story.namespace)
        elif kind == "leave":
            store.leave_memory(story.namespace)
        else:
            all_of_it = story.ids(*range(1, BLOCKS + 1))
            stamps = {held.id: held.stamp_ns for held in store.hot.entries()}
            store.delete({page: stamps.get(page, 1) for page in all_of_it}, disk_only=True)
        self._journal.add("ended", of=of)


def excused(entries: Sequence[Entry]) -> Iterator[tuple[Entry, bool]]:
    """Yield each promise, and whether a clear or an eviction by request came after its commit had
    begun, as far as is known."""
    ends = {entry["of"]: number for number, entry in enumerate(entries) if "of" in entry}
    last: dict[str, float] = {}
    for number, entry in enumerate(entries):
        if entry["kind"] in ("clear", "evict"):
            end = ends.get(number, float("inf"))
            last[entry["story"]] = max(last.get(entry["story"], 0), end)
    for entry in entries:
        if entry["kind"] == "flushed":
            yield entry, last.get(entry["story"], -1) > entry["since"]


def cleared(entries: Sequence[Entry]) -> Iterator[Entry]:
    """Yield what was cleared while nobody stored it, and was not stored since."""
    ended = {entry["of"] for entry in entries if "of" in entry}
    busy: Counter[str] = Counter()
    last: dict[str, Entry] = {}
    for number, entry in enumerate(entries):
        if entry["kind"] == "clear" and number in ended and not busy[entry["story"]]:
            last[entry["story"]] = entry
        elif entry["kind"] == "commit":
            busy[entry["story"]] += 1
            last.pop(entry["story"], None)
        elif entry["kind"] == "committed":
            busy[entry["story"]] -= 1
    yield from last.values()


class Check:
    """Opens a directory as a new process would, and compares it with what a journal promises."""

    def __init__(
        self, plan: DirectoryUse, directory: Path, journal: Journal, tally: Counter[str]
    ) -> None:
        self._plan, self._journal, self._tally = plan, journal, tally
        self._directory = directory
        self._seen: dict[tuple[str, int], bool] = {}
        self.faults: list[str] = []

    def run(self, *, clears: bool) -> None:
        entries = list(self._journal.entries)
        with open_store(
            self._directory, WatchedDeletes(self._journal), **self._plan.options
        ) as store:
            # The directory has been read when the writer answers.
            assert store.flush(FLUSH_SECONDS)
            for promise, is_excused in excused(entries):
                self._tally["excused" if is_excused else "checked"] += 1
                self._look(store, promise, is_excused)
            for entry in cleared(entries) if clears else ():
                story = Story(entry["story"], nbytes=entry["nbytes"])
                self._tally["cleared"] += 1
                if any(store.find(page) for page in story.ids(*range(1, BLOCKS + 1))):
                    self._fault("served after clear", entry)

    def _look(self, store: BlockStore, promise: Entry, is_excused: bool) -> None:
        story = Story(promise["story"], nbytes=promise["nbytes"])
        later = self._journal.entries[promise["since"] :] if self._plan.tight else []
        removed = {entry["page"] for entry in later if entry["kind"] == "removed"}
        for number in range(1, promise["pages"] + 1):
            page = story.id(number)
            if self._is_here(store, promise["story"], number, story) or is_excused:
                continue
            if page.key.hex() in removed:
                self._tally["pages evicted"] += 1
            elif self._plan.tight and number in promise["lacking"] and promise["rejected"]:
                self._tally["pages rejected"] += 1
            else:
                self._fault(f"page {number} is not there", promise)
                return

    def _is_here(self, store: BlockStore, name: str, number: int, story: Story) -> bool:
        if (name, number) not in self._seen:
            page, found = story.id(number), None
            # A damaged page is a miss; whether it had to be there is asked elsewhere.
            with contextlib.suppress(PageError):
                found = fetch(store, page)
            if found not in (None, expected_payload(page, story.nbytes)):
                self._fault("wrong bytes", {"story": name, "page": number})
            self._seen[name, number] = found is not None
        return self._seen[name, number]

    def _fault(self, what: str, entry: Entry) -> None:
        self._tally["untrue"] += 1
        self.faults.append(f"{what}: {entry} of {self._plan}")


def cut_round(seed: int, base: Path, tally: Counter[str]) -> list[str]:
    """Work on a recorded disk, and look at what power cuts leave: one at the end, which every
    promise has to survive, and some anywhere."""
    plan, live, journal = DirectoryUse.drawn(seed, "fsync"), base / "live", Journal()
    disk = journal.disk = Recorded(journal)
    with open_store(live, disk, **plan.options) as store:
        FlushingWork(plan, 0, store, journal).run()
        log, entries = disk.log[:], journal.entries[:]
    tally.update(entry["kind"] for entry in entries)
    faults, draw = list[str](), random.Random(f"cuts {seed}")
    for at in [len(log), *(draw.randrange(len(log) + 1) for _ in range(CUTS))]:
        remains, left = Disk(base), base / f"cut-{at}"
        remains.replay(log[:at], log[at] if at < len(log) else None)
        remains.materialise(left, draw)
        known = Journal([entry for entry in entries if entry["at"] <= at])
        checked = Check(plan, left / "live", known, tally)
        checked.run(clears=False)
        faults += [f"power cut at {at} of {len(log)}: {fault}" for fault in checked.faults]
        tally["cuts"] += 1
        shutil.rmtree(left)
    return faults


def kill_round(seed: int, base: Path, tally: Counter[str]) -> list[str]:
    """Kill one process after another on a directory, and look at everything after each."""
    plan, directory, draw = (
        DirectoryUse.drawn(seed, "none"),
        base / "cold",
        random.Random(f"kill {seed}"),
    )
    journal, faults = Journal(), list[str]()
    for life in range(LIVES):
        heard, killed = _live(seed, life, directory, draw.randrange(3 * plan.threads * TURNS))
        tally.update(entry["kind"] for entry in heard)
        tally["kills"] += killed
        shift = len(journal.entries)
        for entry in heard:
            moved = {name: entry[name] + shift for name in ("since", "of") if name in entry}
            journal.entries.append({**entry, **moved})
        checked = Check(plan, directory, journal, tally)
        checked.run(clears=True)
        faults += [f"killed in life {life}: {fault}" for fault in checked.faults]
    return faults


def _live(seed: int, life: int, directory: Path, last: int) -> tuple[list[Entry], bool]:
    """Start a process, kill it at that entry of its journal, and return what was heard of it, and
    whether it was killed before its end."""
    heard: list[Entry] = []
    command = ["qa.flushes", "--work", str(directory), "--seed", str(seed), "--life", str(life)]
    with tempfile.TemporaryFile("w+") as errors:
        process = forks.fork(command, forks.environment(), errors.fileno())
        with process.stdout as stdout:
            for line in stdout:
                heard.append(json.loads(line))
                if len(heard) > last:
                    process.kill()
        code = process.wait(60)
        errors.seek(0)
        assert code in (0, -9), errors.read()
    return heard, code != 0


def campaign(count: int, seed: int, base: Path | None = None) -> tuple[Counter[str], list[str]]:
    """Run rounds until so many flushes were True; return the counts, and the broken promises."""
    tally: Counter[str] = Counter()
    faults: list[str] = []
    while tally["flushed"] < count:
        run = cut_round if tally["rounds"] % 2 else kill_round
        with tempfile.TemporaryDirectory(prefix="omlx-flushes-", dir=base) as name:
            found = run(1000 * seed + tally["rounds"], Path(name), tally)
        tally["rounds"] += 1
        faults += found
        print(*found, sep="\n", end="\n" * bool(found), flush=True)
    return tally, faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.flushes", description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="flushes that say True")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--life", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        plan, journal = DirectoryUse.drawn(args.seed, "none"), Journal(out=1)
        with open_store(args.work, WatchedDeletes(journal), **plan.options) as store:
            FlushingWork(plan, args.life, store, journal).run()
        return 0
    tally, faults = campaign(args.count, args.seed)
    for name, number in sorted(tally.items()):
        print(f"{name:16} {number:8,}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
