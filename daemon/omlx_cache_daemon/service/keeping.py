"""A cold tier that keeps a directory for others: it writes no page, and evicts when no store
does."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omlx_cache_daemon.changing import remove_useless
from omlx_cache_storage.cold.catalog import (
    Inventory,
    is_leftover,
    namespace_directories,
    shard_directories,
)
from omlx_cache_storage.cold.index import Contents
from omlx_cache_storage.cold.opening import Opening
from omlx_cache_storage.cold.shared_limits import SharedLimits
from omlx_cache_storage.cold.small_files import Budget, read_budget
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import TEMPORARY_PREFIX


class _KeepingLimits(SharedLimits):
    """Leaves the budget to stores, with two exceptions. One is a budget that was derived from free
    space where a figure was given; the other is the figure that this one set itself
    (`set_before`)."""

    set_before: int | None = None

    def agree(self) -> None:
        super().agree()
        if not self.derived and self._index.limit_bytes == self.wanted:
            budget = read_budget(self._index.directory, self._fs)
            if budget is not None and budget.set_by == "store":
                self.set_before = budget.nbytes

    def may_replace(self, known: Budget | None) -> bool:
        alone = super().may_replace(known)
        if known is None:
            return alone
        own = known.set_by == "store" and known.nbytes == self.set_before
        return alone and not self.derived and (own or known.set_by == "free space")


class _KeepingOpening(Opening):
    """Reads the directory for one that waits for stores."""

    def load(self) -> None:
        super().load()
        # From now on it waits for a store, or a person, to make one that was deleted.
        self.root.makes = False

    def read_directory(self) -> tuple[Contents, Inventory]:
        # The new contents replace the old ones: for a million pages both are too much.
        with self._index.lock:
            self._index.contents.become(Contents(self._index.make_policy(None)))
        return super().read_directory()


class KeepingTier(ColdTier):
    """Follows a directory that stores use, evicts to its budget and to `min_free_bytes`, and does
    not count as a user of the directory. A store that is alone beside this one is alone.

    An existing budget stays, with two exceptions: one derived from free space, where this tier was
    given a figure, and the figure that it set itself (`set_before`). All but lookups belongs to one
    thread.
    """

    _limits: _KeepingLimits

    def __init__(self, directory: Path, limit_bytes: int, **options: Any) -> None:
        super().__init__(
            directory,
            limit_bytes,
            limits_type=_KeepingLimits,
            opening_type=_KeepingOpening,
            **options,
        )

    def open(self, budget: Callable[[int], int] | None = None) -> None:
        self.sharing.counts = False
        super().open(budget)

    @property
    def limits(self) -> _KeepingLimits:
        """The limits, with the budget that this one set itself."""
        return self._limits

    def is_there(self) -> bool:
        """True for a directory that exists, and is no empty place of one that went away; raises
        OSError."""
        self._opening.root.check()
        return self._fs.exists(self.directory)

    def has_limits(
        self, limit_bytes: int, min_free_bytes: int, budget: Callable[[int], int], *, derived: bool
    ) -> bool:
        """Go by other limits from now on, as one that is opened with them would; False when the
        directory lock timed out: its budget is as before."""
        self._limits.wanted, self._limits.derived = limit_bytes, derived
        self._limits.budget_of, self.evictor.min_free = budget, min_free_bytes
        try:
            with self.sharing.changing():
                self._limits.heed(anew=True)
        except OSError:
            return False
        return True

    def keep(self) -> int:
        """`settle`, and evict until the disk has its free space; return how many pages left for
        that. Raises nothing."""
        self.settle()
        freed = self.keep_free()
        # This process has no memory tier that would need the lost pages.
        self.take_lost()
        return freed

    def sweep(self) -> int:
        """Delete temporary files of dead writers, and folders without pages; return how many files
        were deleted. Looks at names, and at nothing else of a page; raises OSError where the
        directory cannot be listed. A folder that fails is tried again, and the others are swept."""
        fs, swept = self._fs, 0
        namespaces = [path for _, path in namespace_directories(self.directory, fs)]
        shards = [shard for path in namespaces for shard in shard_directories(path, fs)]
        for place in (os.fspath(self.directory), *namespaces, *shards):
            with contextlib.suppress(OSError):
                entries = list(fs.scan(place))
                left = [entry.path for entry in entries if _is_left(entry)]
                swept += remove_useless(
                    self.directory, left, [place] * (not entries and place in shards), fs
                )
        return swept


def _is_left(entry: "os.DirEntry[str]") -> bool:
    """True for a temporary file of a dead writer; raises OSError."""
    return entry.name.startswith(TEMPORARY_PREFIX) and is_leftover(
        entry.name, entry.stat(follow_symlinks=False).st_mtime_ns
    )
