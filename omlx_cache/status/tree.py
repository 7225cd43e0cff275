"""The tree of cached prefixes: namespaces, the roots of each, and where they branch.

A node is a run of blocks, none of which branches. Array operations only, so that a million pages
take a second.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from omlx_cache_storage.eviction.keep import SUPERSEDED_NS
from omlx_cache_storage.eviction.order import Record
from omlx_cache_storage.keys import PARENT_HINT_BYTES, BlockKey

Numbers = npt.NDArray[np.int64]
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
"""Blocks one after the other, none of which branches: tokens `start` to `end`; or one block.

`key` is its last block's, by which a reader asks for the runs behind it, and `number` the key's. It
has `children` runs, with `leaves` ends among all runs behind (1 for a run that is one itself).
`parent` is the row that it follows, or -1. `rootless`: what leads to it is not cached, so it is of
no use before that is. `pinned`: a pin of the directory keeps pages of it. `used_ns` is when it was
used last.
"""
_EARLIEST_NS = -(1 << 62)


class PrefixTree:
    """The tree as it was when its pages were listed; nothing in it changes. Some 100 bytes for each
    of its runs."""

    def __init__(self, tiers: Mapping[str, Sequence[Record]]) -> None:
        records = [record for tier in TIERS for record in tiers.get(tier, ())]
        known: dict[BlockKey, int] = {}
        namespace = [known.setdefault(record.namespace, len(known)) for record in records]
        tier = np.repeat(range(len(TIERS)), [len(tiers.get(name, ())) for name in TIERS])
        self._namespaces = list(known)
        blocks = _blocks(records, tier, np.array(namespace, np.int64), hint_numbers(known))
        self._runs = _runs(blocks)
        self._by_parent = np.argsort(self._runs["parent"], kind="stable")

    def has(self, key: BlockKey) -> bool:
        return self._find(key) is not None

    def namespaces(self) -> list[tuple[BlockKey, Runs]]:
        """Return the namespaces that have pages with their runs, the one used last first."""
        each = [self._runs[self._runs["namespace"] == n] for n in range(len(self._namespaces))]
        pairs = [pair for pair in zip(self._namespaces, each, strict=True) if len(pair[1])]
        return sorted(pairs, key=lambda pair: -int(pair[1]["used_ns"].max()))

    def roots(self, namespace: BlockKey, limit: int) -> tuple[Runs, int]:
        """Return the latest runs that begin a namespace's prefixes, and how many more."""
        if namespace not in self._namespaces:
            return self._runs[:0], 0
        of_it = self._runs["namespace"] == self._namespaces.index(namespace)
        return self._latest(np.flatnonzero(of_it & (self._runs["parent"] < 0)), limit)

    def after(self, key: BlockKey, limit: int) -> tuple[Runs, int]:
        """Return the latest runs that follow the block of a key, and how many more."""
        at = self._find(key)
        if at is None:
            return self._runs[:0], 0
        first, last = np.searchsorted(self._runs["parent"][self._by_parent], [at, at + 1])
        return self._latest(self._by_parent[first:last], limit)

    def _find(self, key: BlockKey) -> int | None:
        at = int(_found(self._runs["number"], hint_numbers([key]))[0])
        return at if at >= 0 and self._runs["key"][at] == key else None

    def _latest(self, rows: Numbers, limit: int) -> tuple[Runs, int]:
        order = np.lexsort((-self._runs["end"][rows], -self._runs["used_ns"][rows]))[:limit]
        return self._runs[rows[order]], max(0, len(rows) - limit)


def hint_numbers(keys: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """Return by which number the name of a page after each key tells of it."""
    raw = b"".join([key[:PARENT_HINT_BYTES] for key in keys])
    return np.frombuffer(raw, ">u8").astype(np.uint64)


def _blocks(
    records: Sequence[Record],
    tier: Numbers,
    namespace: Numbers,
    roots: npt.NDArray[np.uint64],
) -> Runs:
    """Return the pages of all tiers and layer groups that end at one key as one row, in the order
    of the keys' numbers.

    Keys are told apart by their first eight bytes, as the names of files tell parents. Two of a
    million are alike once in forty million times, and only people look at this.
    """
    keys = np.empty(len(records), np.object_)
    keys[:] = [record.id.key for record in records]
    number, first, at = np.unique(hint_numbers(keys), return_index=True, return_inverse=True)
    count = len(number)
    blocks = np.zeros(count, RUN)
    blocks["key"], blocks["number"], blocks["namespace"] = keys[first], number, namespace[first]
    blocks["end"] = np.array([record.position for record in records], np.int64)[first]
    # Times of files may be anything.
    stamps = [max(record.stamp_ns, _EARLIEST_NS) for record in records]
    blocks["used_ns"] = _reduced(np.maximum, count, at, np.array(stamps, np.int64))
    nbytes = np.array([record.nbytes for record in records], np.int64)
    for place in range(len(TIERS)):
        here = tier == place
        blocks["pages"][:, place] = np.bincount(at[here], minlength=count)
        blocks["nbytes"][:, place] = _reduced(np.add, count, at[here], nbytes[here])
    blocks["pinned"][at[np.array([record.pinned_ns > 0 for record in records], np.bool_)]] = True
    hints = hint_numbers(record.hint for record in records)[first]
    parent = _found(number, hints)
    # A parent that is made up, or met by chance, makes no circle.
    ends, of = blocks["end"].copy(), blocks["namespace"].copy()
    fits = (parent >= 0) & (ends[parent] < ends) & (of[parent] == of)
    blocks["parent"] = parent = np.where(fits, parent, -1)
    begins = roots[of] == hints
    blocks["rootless"] = (parent < 0) & ~begins
    held = _reduced(np.maximum, count, at, np.array([one.held for one in records], np.int64))
    blocks["start"] = np.where(parent >= 0, ends[parent], np.where(begins, 0, ends - held))
    return blocks


def _runs(blocks: Runs) -> Runs:
    """In the order of their last keys' numbers."""
    count, parent = len(blocks), blocks["parent"].copy()
    has_parent = parent >= 0
    followed = np.bincount(parent[has_parent], minlength=count)
    stale = _ends_within(blocks, has_parent & (followed == 0))
    alive = np.bincount(parent[has_parent & ~stale], minlength=count)
    # The first block of each one's run, in as many steps as a run's length can be halved.
    head = np.where(stale | (has_parent & (alive[parent] == 1)), parent, np.arange(count))
    while not np.array_equal(further := head[head], head):
        head = further
    heads = np.flatnonzero(head == np.arange(count))
    run, chained = np.searchsorted(heads, head), ~stale
    runs, size = blocks[heads], len(heads)
    end = blocks["end"].copy()
    runs["end"] = _reduced(np.maximum, size, run[chained], end[chained])
    last = np.flatnonzero(chained & (end == runs["end"][run]))
    for name in ("key", "number"):
        runs[name][run[last]] = blocks[name][last]
    runs["blocks"] = np.bincount(run[chained], minlength=size)
    runs["pinned"] = np.bincount(run[blocks["pinned"]], minlength=size) > 0
    runs["used_ns"] = _reduced(np.maximum, size, run, blocks["used_ns"].copy())
    for name, place in product(("pages", "nbytes"), range(len(TIERS))):
        runs[name][:, place] = _reduced(np.add, size, run, blocks[name][:, place].copy())
    over = np.where(runs["parent"] >= 0, run[runs["parent"]], -1)
    runs["children"] = np.bincount(over[over >= 0], minlength=size)
    _sum_up(runs, over)
    order = np.argsort(runs["number"])
    runs["parent"] = np.where(over >= 0, np.argsort(order)[over], -1)
    return runs[order]


def _ends_within(blocks: Runs, leaves: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the leaves that are no branch: where a prompt ended, or a turn, before the same
    sequence went on. Pages that one request used together have one stamp. The end of a turn that
    went on is superseded, so it is evicted first."""
    parent, used, end = (blocks[name].copy() for name in ("parent", "used_ns", "end"))
    order = np.lexsort((end, used, parent))
    moves = (np.diff(parent[order]) != 0) | (np.diff(used[order]) != 0)
    group = np.concatenate([[0], np.cumsum(moves)])[: len(order)]
    longest = _reduced(np.maximum, len(order), group, end[order])
    within = np.zeros(len(order), np.bool_)
    within[order] = end[order] < longest[group]
    within &= leaves
    old = leaves & ~within & (used <= SUPERSEDED_NS)
    followed = np.bincount(parent[(parent >= 0) & ~within & ~old], minlength=len(order))
    within |= old & (followed[parent] > 0)
    return within


def _sum_up(runs: Runs, parent: Numbers) -> None:
    """Have each run know when it, or any behind it, was used last, and count the ends behind it."""
    runs["leaves"] = runs["children"] == 0
    # A run behind another ends behind it: the deepest first, all of one place at once.
    order = np.argsort(-runs["end"], kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(runs["end"][order])) + 1):
        below = rows[parent[rows] >= 0]
        np.add.at(runs["leaves"], parent[below], runs["leaves"][below])
        np.maximum.at(runs["used_ns"], parent[below], runs["used_ns"][below])


def _reduced(how: np.ufunc, count: int, at: Numbers, values: Numbers) -> Numbers:
    """Return the sums, or another reduction, of the values that belong at each place."""
    # Columns of their own: the columns of a row are spread, and several times as slow.
    reduced = np.zeros(count, np.int64)
    how.at(reduced, at, values)
    return reduced


def _found(numbers: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> Numbers:
    """Return where each number stands in a sorted column, -1 for one that does not."""
    if not len(numbers):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where(numbers[at] == wanted, at, -1)
