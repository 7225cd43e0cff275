"""The budget of a cold directory as people and programs see it: plain values, read from files."""

from dataclasses import replace
from pathlib import Path

from omlx_cache.control.listing import Footprint, list_pages
from omlx_cache_daemon.changing import change_budget
from omlx_cache_daemon.cold import reading, root_of
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.replies import Map
from omlx_cache_storage.cold.budget import Budget
from omlx_cache_storage.cold.catalog import entries, namespace_directories, root_bytes
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.root import DirectoryGone
from omlx_cache_storage.cold.small_files import read_budget
from omlx_cache_storage.format.names import BUDGET_FILE, LEDGER_FILE


def described(cold_dir: Path) -> Map:
    """Return a directory's budget and what is used of it. Opens no page; raises NobodyThere without
    a directory."""
    with reading(cold_dir):
        budget = read_budget(cold_dir)
        used = Footprint(root_bytes(cold_dir))
        for page in list_pages((), entries(cold_dir)):
            used.add(page)
        return {
            "directory": str(cold_dir),
            "bytes": None if budget is None else budget.nbytes,
            "set_by": None if budget is None else budget.set_by,
            "used_bytes": used.nbytes,
        }


def change(cold_dir: Path, nbytes: int | None, *, make: bool) -> None:
    """Change a directory's budget; None leaves it to the stores.

    `make`: a directory that no store has used yet is made. Raises CommandError, ChangeRefused.
    """
    if make and nbytes is not None:
        try:
            root_of(cold_dir).have(deleted=False)
        except DirectoryGone as gone:
            raise CommandError(str(gone.strerror)) from gone
    with reading(cold_dir):
        _refuse_other_things(cold_dir)
        change_budget(cold_dir, lambda known: _resized(known, nbytes))


def _refuse_other_things(cold_dir: Path) -> None:
    """Raise CommandError for a directory that is somebody's, and no cold directory."""
    fs = FileSystem()
    if any(True for _ in namespace_directories(cold_dir, fs)):
        return
    names = {entry.name for entry in fs.scan(cold_dir)}
    if names & {BUDGET_FILE, LEDGER_FILE} or all(name.startswith(".") for name in names):
        return
    raise CommandError(f"{cold_dir} holds other things, and is no cold directory")


def _resized(known: Budget | None, nbytes: int | None) -> Budget:
    if nbytes is not None:
        return Budget(nbytes, "quota")
    if known is None:
        raise CommandError(
            "the directory has no budget yet: give it one first, such as omlx-cache quota 20GiB"
        )
    return replace(known, set_by="free space")
