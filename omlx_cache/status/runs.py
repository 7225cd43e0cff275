"""Runs of blocks, none of which branches, from the columns of pages: the nodes of the tree of
cached prefixes. Array operations only, so that a million pages take a second."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.cold.contents import PageFile
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS
from omlx_cache_storage.keys import PARENT_HINT_BYTES, BlockKey
from omlx_cache_storage.table import Record

Numbers = npt.NDArray[np.int64]
_EARLIEST_NS = -(1 << 62)
Runs = npt.NDArray[np.void]
"""Rows of `RUN`."""
TIERS = ("hot", "cold")
RUN = np.dtype(
    [
        ("key", np.object_),
        ("number", np.uint64),
        ("parent", np.int64),
        ("start", np.int64),
        ("end", np.int64),
        ("blocks", np.int64),
        ("pages", np.int64, len(TIERS)),
        ("nbytes", np.int64, len(TIERS)),
        ("used_ns", np.int64),
        ("children", np.int64),
        ("leaves", np.int64),
        ("rootless", np.bool_),
        ("pinned", np.bool_),
        ("namespace", np.int64),
    ]
)
"""Blocks one after the other, none of which branches: tokens `start` to `end`.

`key` is that of its last block, by which one asks for what follows, and `number` the key's:
`children` runs, with `leaves` ends among all that is behind (1 for a run that is one itself).
`parent` is the row that it follows, or -1. `rootless`: what leads to it is not cached, so it is of
no use before that is. `pinned`: a pin of the directory keeps pages of it. `used_ns` is when it was
used last.
"""


class PageColumns(NamedTuple):
    """A copy, which belongs to who asked for it. `keys` has the pages' keys as objects,
    `hints` what a name knows of the parent's, as a number; `namespace` counts in `namespaces`.
    `pinned` are those that a pin of the directory keeps, None for no page."""

    keys: npt.NDArray[Any]
    hints: npt.NDArray[np.uint64]
    positions: Numbers
    held: Numbers
    nbytes: Numbers
    stamps: Numbers
    namespaces: Sequence[BlockKey]
    namespace: npt.NDArray[np.uint32]
    pinned: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.keys)


def hint_numbers(keys: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """Return by which number the name of a page after each key tells of it."""
    raw = b"".join([key[:PARENT_HINT_BYTES] for key in keys])
    return np.frombuffer(raw, ">u8").astype(np.uint64)


def columns_of(
    records: Sequence[Record], pinned: npt.NDArray[np.bool_] | None = None
) -> PageColumns:
    """Return records as columns."""
    numbers: dict[BlockKey, int] = {}
    namespace = [numbers.setdefault(record.namespace, len(numbers)) for record in records]
    keys = np.empty(len(records), np.object_)
    keys[:] = [record.id.key for record in records]
    return PageColumns(
        keys,
        hint_numbers(record.hint for record in records),
        np.array([record.position for record in records], np.int64),
        np.array([record.held for record in records], np.int64),
        np.array([record.nbytes for record in records], np.int64),
        # Times of files may be anything.
        np.array([max(record.stamp_ns, _EARLIEST_NS) for record in records], np.int64),
        list(numbers),
        np.array(namespace, np.uint32),
        pinned,
    )


def columns_of_files(files: Sequence[PageFile]) -> PageColumns:
    """Return records of a directory's files as columns, with what pins keep."""
    return columns_of(files, np.array([file.kept for file in files], np.bool_))


class Blocks(NamedTuple):
    """Blocks as columns: the pages of all tiers and layer groups that end at one key."""

    keys: npt.NDArray[np.object_]
    numbers: npt.NDArray[np.uint64]
    parent: Numbers
    rootless: npt.NDArray[np.bool_]
    position: Numbers
    start: Numbers
    used_ns: Numbers
    pages: Numbers
    nbytes: Numbers
    pinned: npt.NDArray[np.bool_]
    namespace: Numbers
    namespaces: list[BlockKey]

    @classmethod
    def of(cls, tiers: Mapping[str, PageColumns]) -> "Blocks":
        """Return the blocks in the order of their keys' numbers.

        Keys are told apart by their first eight bytes, as the names of files tell parents: two of
        a million are alike once in forty million times, and it is people who look at this.
        """
        columns = [tiers[tier] for tier in TIERS if tier in tiers]
        known: dict[BlockKey, int] = {}
        places = []
        for one in columns:
            numbers = [known.setdefault(name, len(known)) for name in one.namespaces]
            places.append(np.array(numbers, np.int64)[one.namespace])
        keys = np.concatenate([one.keys for one in columns] or [np.empty(0, np.object_)])
        number, first, at = np.unique(hint_numbers(keys), return_index=True, return_inverse=True)
        count = len(number)
        position = _joined(columns, "positions")
        held, stamps = _joined(columns, "held"), _joined(columns, "stamps")
        used = np.zeros(count, np.int64)
        np.maximum.at(used, at, stamps)
        longest = np.zeros(count, np.int64)
        np.maximum.at(longest, at, held)
        pages, nbytes = np.zeros((2, len(TIERS), count), np.int64)
        pinned = np.zeros(count, np.bool_)
        done = 0
        for tier, one in zip([t for t in TIERS if t in tiers], columns, strict=True):
            rows = at[done : done + len(one)]
            np.add.at(pages[TIERS.index(tier)], rows, 1)
            np.add.at(nbytes[TIERS.index(tier)], rows, one.nbytes)
            done += len(one)
            if one.pinned is not None:
                pinned[rows[one.pinned]] = True
        hints = np.concatenate([one.hints for one in columns] or [np.empty(0, np.uint64)])[first]
        namespace = np.concatenate(places or [np.empty(0, np.int64)])[first]
        ends = position[first]
        parent = found(number, hints)
        # What is made up, or met by chance, makes no circle.
        fits = (parent >= 0) & (ends[parent] < ends) & (namespace[parent] == namespace)
        parent = np.where(fits, parent, -1)
        begins = hint_numbers(list(known))[namespace] == hints
        start = np.where(parent >= 0, ends[parent], np.where(begins, 0, ends - longest))
        return cls(
            keys[first],
            number,
            parent,
            (parent < 0) & ~begins,
            ends,
            start,
            used,
            pages,
            nbytes,
            pinned,
            namespace,
            list(known),
        )


def runs_of(blocks: Blocks) -> Runs:
    """Return the runs of blocks in the order of their last keys' numbers."""
    count, parent = len(blocks.keys), blocks.parent
    has_parent = parent >= 0
    followed = np.bincount(parent[has_parent], minlength=count)
    stale = _ends_within(blocks, has_parent & (followed == 0))
    alive = np.bincount(parent[has_parent & ~stale], minlength=count)
    inner = has_parent & ~stale & (alive[parent] == 1)
    head = _heads(np.where(inner | stale, parent, np.arange(count)))
    chained = ~stale
    heads = np.flatnonzero(head == np.arange(count))
    place = np.full(count, -1, np.int64)
    place[heads] = np.arange(len(heads))
    run = place[head]
    end = np.zeros(len(heads), np.int64)
    np.maximum.at(end, run[chained], blocks.position[chained])
    last = np.zeros(len(heads), np.int64)
    ends = chained & (blocks.position == end[run])
    last[run[ends]] = np.flatnonzero(ends)
    used = np.zeros(len(heads), np.int64)
    np.maximum.at(used, run, blocks.used_ns)
    above = parent[heads]
    over = np.where(above >= 0, run[above], -1)
    runs = np.zeros(len(heads), RUN)
    runs["key"], runs["number"] = blocks.keys[last], blocks.numbers[last]
    runs["start"], runs["end"] = blocks.start[heads], end
    runs["blocks"] = np.bincount(run[chained], minlength=len(heads))
    runs["pages"] = _by_run(blocks.pages, run, len(heads)).T
    runs["nbytes"] = _by_run(blocks.nbytes, run, len(heads)).T
    runs["rootless"], runs["namespace"] = blocks.rootless[heads], blocks.namespace[heads]
    runs["pinned"] = np.bincount(run[blocks.pinned], minlength=len(heads)) > 0
    runs["children"] = np.bincount(over[over >= 0], minlength=len(heads))
    runs["used_ns"], runs["leaves"] = _summed_up(over, end, used, runs["children"])
    order = np.argsort(runs["number"])
    moved = np.empty(len(heads), np.int64)
    moved[order] = np.arange(len(heads))
    runs["parent"] = np.where(over >= 0, moved[over], -1)
    return runs[order]


def _ends_within(blocks: Blocks, leaves: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the leaves that are no branch: where a prompt ended, or a turn, before the same
    sequence went on. What one request used together has one stamp, and the end of a turn that went
    on is superseded: it is the first to leave."""
    parent, used, position = blocks.parent, blocks.used_ns, blocks.position
    order = np.lexsort((position, used, parent))
    moves = (np.diff(parent[order]) != 0) | (np.diff(used[order]) != 0)
    group = np.concatenate([[0], np.cumsum(moves)]) if len(order) else order
    longest = np.zeros(len(order), np.int64)
    np.maximum.at(longest, group, position[order])
    within = np.zeros(len(order), np.bool_)
    within[order] = position[order] < longest[group]
    within &= leaves
    old = leaves & ~within & (used <= SUPERSEDED_NS)
    followed = np.bincount(parent[(parent >= 0) & ~within & ~old], minlength=len(order))
    return within | (old & (followed[parent] > 0))


def _joined(columns: Iterable[PageColumns], name: str) -> Numbers:
    parts: list[Numbers] = [getattr(one, name) for one in columns]
    return np.concatenate(parts or [np.empty(0, np.int64)])


def found(numbers: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> Numbers:
    """Return where each number stands in a sorted column, -1 for one that does not."""
    if not len(numbers):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where(numbers[at] == wanted, at, -1)


def _heads(before: Numbers) -> Numbers:
    """Return, for each block, the first of its run: as often as a run's length can be halved."""
    while True:
        further = before[before]
        if np.array_equal(further, before):
            return before
        before = further


def _by_run(column: Numbers, run: Numbers, count: int) -> Numbers:
    sums = np.zeros((len(column), count), np.int64)
    for total, one in zip(sums, column, strict=True):
        np.add.at(total, run, one)
    return sums


def _summed_up(
    parent: Numbers, end: Numbers, used: Numbers, children: Numbers
) -> tuple[Numbers, Numbers]:
    """Return when each run, or any behind it, was used last, and the ends behind it."""
    leaves = (children == 0).astype(np.int64)
    # What is behind ends behind: the deepest first, all of one place at once.
    order = np.argsort(-end, kind="stable")
    bounds = np.flatnonzero(np.diff(end[order], prepend=-1, append=-1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = order[first:last]
        rows = rows[parent[rows] >= 0]
        np.add.at(leaves, parent[rows], leaves[rows])
        np.maximum.at(used, parent[rows], used[rows])
    return used, leaves
