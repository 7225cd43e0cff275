"""The budget of a cold directory, kept in it: one for all processes that use it.

`budget.json` lies beside the namespaces and is replaced as a whole. It says how many bytes the
directory may take, and who said so. What a person set with `omlx-cache quota` stays until that
changes it; what stores set, stores change.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast, get_args

from omlx_cache_storage.cold.disk import Durability, FileSystem
from omlx_cache_storage.cold.document import read_map
from omlx_cache_storage.cold.records import SMALL_FILE_BYTES
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.format.names import BUDGET_FILE

VERSION = 1
MOST_BYTES = (1 << 63) - 1

SetBy = Literal["free space", "store", "quota"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a directory may take on the disk, and who said so. Raises ValueError for what no
    directory can have.

    `shares` is what an earlier version wrote: ceilings for parts of the directory. This version
    keeps them in the file and does not go by them.
    """

    nbytes: int
    set_by: SetBy
    shares: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.nbytes <= MOST_BYTES:
            raise ValueError(f"no number of bytes: {self.nbytes}")


class Agreement(NamedTuple):
    """What a store goes by that opens a directory.

    `write`: the directory's file is to say `budget` from now on. `own_limit`: this store stops
    writing where the directory holds so much, and deletes nothing for it; None: `budget` alone
    counts. `note`: one line for a person who set something else, or "".
    """

    budget: Budget
    write: bool
    own_limit: int | None
    note: str


def agree(
    known: Budget | None, wanted_bytes: int, *, derived: bool, alone: bool, used_bytes: int
) -> Agreement:
    """Return which budget counts when a store opens that wants so much; decides only.

    `known`: what the directory's file says; `derived`: `wanted_bytes` comes from free space, nobody
    chose it; `alone`: no other process uses the directory, which holds `used_bytes`. Where others
    are, nothing becomes a budget that would make them delete what they hold.
    """
    if derived:
        return _agree_derived(known, wanted_bytes, alone, used_bytes)
    fits = alone or used_bytes <= wanted_bytes
    if known is None:
        if fits:
            return Agreement(Budget(wanted_bytes, "store"), True, None, "")
        # The others have one that nobody wrote down: what they hold is the least that it can be.
        return _differs(Budget(used_bytes, "free space"), wanted_bytes)
    free = known.set_by == "free space" or (alone and known.set_by == "store")
    if free and fits:
        budget = replace(known, nbytes=wanted_bytes, set_by="store")
        return Agreement(budget, budget != known, None, "")
    return _differs(known, wanted_bytes)


def _agree_derived(
    known: Budget | None, wanted_bytes: int, alone: bool, used_bytes: int
) -> Agreement:
    if known is not None and (known.set_by != "free space" or not alone):
        return Agreement(known, False, None, "")
    least = 0 if alone else used_bytes
    budget = Budget(max(wanted_bytes, least), "free space", {} if known is None else known.shares)
    return Agreement(budget, budget != known, None, "")


def own_limit(budget: Budget, wanted_bytes: int, *, derived: bool) -> int | None:
    """Return where a process stops writing by itself that was told `wanted_bytes`; None: it goes by
    the budget. What is derived from free space limits nobody."""
    return wanted_bytes if not derived and wanted_bytes < budget.nbytes else None


def _differs(budget: Budget, wanted_bytes: int) -> Agreement:
    """Return what a store goes by that was told another limit than its directory has."""
    if wanted_bytes == budget.nbytes:
        return Agreement(budget, False, None, "")
    own = own_limit(budget, wanted_bytes, derived=False)
    note = (
        f"the directory's budget is {budget.nbytes:,} bytes for all processes, set by "
        f"{WORDS[budget.set_by]}"
        + (", which" if budget.set_by == "quota" else "; `omlx-cache quota`")
        + f" changes it; this process was told {wanted_bytes:,} bytes and "
        + (
            "writes only while the directory holds less"
            if own is not None
            else "goes by the budget"
        )
    )
    return Agreement(budget, False, own, note)


IGNORED_SHARES: Final = (
    f"{BUDGET_FILE} has shares that an earlier version set, and they do not count any more: give a "
    "tenant, model or namespace a cold_dir of its own; `omlx-cache quota SIZE` takes them out"
)
WORDS: Final[Mapping[SetBy, str]] = {
    "free space": "the free space that the disk had",
    "store": "a store's cold_bytes",
    "quota": "`omlx-cache quota`",
}
"""Who set a budget, for people."""


def read_budget(cold_dir: Path, fs: FileSystem | None = None) -> Budget | None:
    """Return what a directory's file says, None for one that is missing, torn or somebody else's.

    Reads a file; raises OSError where the disk refuses: then nobody knows what it says, and who
    takes that for no budget would replace one that a person set.
    """
    return parse_budget(_read(cold_dir, fs or FileSystem()))


def write_budget(
    cold_dir: Path, budget: Budget, names: TemporaryNames, fs: FileSystem | None = None
) -> bool:
    """Replace a directory's file, whole or not at all, what a person set durably; False where the
    directory is not this user's alone or is missing, or where a newer version wrote the file.

    Raises OSError. `names` lives for as long as somebody may write with it.
    """
    fs = fs or FileSystem()
    if not fs.exists(cold_dir) or not fs.identity(cold_dir)[-1] or is_newer(cold_dir, fs):
        return False
    # A torn file is no budget, and a person's word is not lost with the power. What a store sets it
    # sets again.
    durability: Durability = "fsync" if budget.set_by == "quota" else "none"
    names.replace(os.path.join(cold_dir, BUDGET_FILE), _encoded(budget), fs, durability)
    if durability != "none":
        fs.sync_directory(cold_dir, durability)
    return True


def is_newer(cold_dir: Path, fs: FileSystem | None = None) -> bool:
    """True when a directory's file was written by a newer version, which may have said more than
    this one understands; raises OSError."""
    return _version(_read(cold_dir, fs or FileSystem())) > VERSION


def file_bytes(budget: Budget) -> int:
    """Return what a directory has to count for the file, its name aside: for itself, one that takes
    its place, and the moment at which both are there.

    While a file is small, the room that is left for small files is enough for the second one.
    """
    size = len(_encoded(budget))
    return SMALL_FILE_BYTES if 2 * size <= SMALL_FILE_BYTES else 2 * (size + SMALL_FILE_BYTES)


def _encoded(budget: Budget) -> bytes:
    return json.dumps(document_of(budget), indent=1, sort_keys=True).encode() + b"\n"


def document_of(budget: Budget) -> dict[str, object]:
    """Return a budget as plain values: its file's content."""
    said = {"version": VERSION, "bytes": budget.nbytes, "set_by": budget.set_by}
    return {**said, "shares": dict(budget.shares)}


def parse_budget(document: Mapping[str, object]) -> Budget | None:
    """Return what a file says, None where it names no bytes.

    What a newer version wrote counts as far as it is understood, and as set by `omlx-cache quota`:
    no store of this version replaces it.
    """
    version, nbytes, said = _version(document), document.get("bytes"), document.get("set_by")
    if not version or not _is_bytes(nbytes):
        return None
    known = version == VERSION and said in get_args(SetBy)
    set_by = cast(SetBy, said) if known else "quota"
    shares = document.get("shares")
    return Budget(cast(int, nbytes), set_by, shares if isinstance(shares, dict) else {})


def _read(cold_dir: Path, fs: FileSystem) -> dict[str, object]:
    """Return a directory's file, {} for one that is missing, torn or somebody else's; raises
    OSError."""
    return read_map(os.path.join(cold_dir, BUDGET_FILE), fs)


def _version(document: Mapping[str, object]) -> int:
    """Return which version wrote a file, 0 for nobody's."""
    version = document.get("version")
    return version if isinstance(version, int) and version is not True and version > 0 else 0


def _is_bytes(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_BYTES
