"""Changing a directory's budget from outside of its stores: those that run on it are told."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from omlx_cache_storage.cold.budget import Budget, is_newer, read_budget, write_budget
from omlx_cache_storage.cold.changes import Rebudgeted, encode
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.removal import WAIT_SECONDS, ledger_of
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.errors import CacheError
from omlx_cache_storage.format.names import BUDGET_FILE
from omlx_cache_storage.private import trouble


class BudgetRefused(CacheError):
    """A directory's budget cannot be changed; the text says why, and what to do."""


def set_budget(cold_dir: Path, budget: Budget, fs: FileSystem | None = None) -> None:
    """Give a directory a budget; otherwise as `change_budget`."""
    change_budget(cold_dir, lambda _: budget, fs)


def change_budget(
    cold_dir: Path, change: Callable[[Budget | None], Budget], fs: FileSystem | None = None
) -> Budget:
    """Replace a directory's budget by what `change` makes of it, durably, and return that.

    Nobody else changes it meanwhile. Stores that run go by it from their next write or idle moment
    on; what is too much they evict then, or else the next one that opens. Raises BudgetRefused, and
    OSError when the disk refuses, or others keep the directory for too long.
    """
    fs = fs or FileSystem()
    with (
        ledger_of(cold_dir, fs) as ledger,
        contextlib.nullcontext() if ledger is None else ledger.held(WAIT_SECONDS),
    ):
        before = read_budget(cold_dir, fs)
        budget = change(before)
        if budget == before:
            return budget
        if not write_budget(cold_dir, budget, TemporaryNames(), fs):
            raise BudgetRefused(_why_refused(cold_dir, fs))
        if ledger is not None:
            ledger.append([encode(Rebudgeted())])
        return budget


def _why_refused(cold_dir: Path, fs: FileSystem) -> str:
    if is_newer(cold_dir, fs):
        return (
            f"a newer version of omlx-cache wrote {cold_dir / BUDGET_FILE}, and may have said more "
            "than this one understands: use that version, or delete the file"
        )
    return trouble(cold_dir, cold_dir.stat()) or f"{cold_dir} is not this user's alone"
