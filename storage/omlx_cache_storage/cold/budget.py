"""The budget of a cold directory, kept in it: one for all processes that use it.

`budget.json` lies beside the namespaces and is replaced as a whole. It says how many bytes the
directory may take, who said so, and which shares of that some of its pages may have at most. What
a person set with `omlx-cache quota` stays until that changes it; what stores set, stores change.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast, get_args

from omlx_cache_storage.cold.disk import Durability, FileSystem
from omlx_cache_storage.cold.document import MAX_DOCUMENT_BYTES, read_map
from omlx_cache_storage.cold.records import SMALL_FILE_BYTES
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.format.names import BUDGET_FILE

VERSION = 1
MOST_BYTES = (1 << 63) - 1
EACH: Final = "*"
"""The name of a share that each one of its kind has by itself, but those that have their own."""

SetBy = Literal["free space", "store", "quota"]
ShareKind = Literal["namespace", "salt", "model"]
KINDS: Final[tuple[ShareKind, ...]] = get_args(ShareKind)


@dataclass(frozen=True, slots=True)
class Share:
    """A ceiling for the pages of a namespace (its digest's hex), a salt (its digest, as documents
    have it) or a model (its name, as listings have it): in bytes, or as a fraction of the budget.

    `EACH` stands for every one that has a name: pages without a salt are no tenant's, and only a
    share with the name "" is theirs. Raises ValueError unless exactly one of `nbytes` and
    `fraction` is given, and is possible.
    """

    kind: ShareKind
    name: str
    nbytes: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.nbytes is None) == (self.fraction is None):
            raise ValueError(f"no share: {self.kind}, {self.nbytes}, {self.fraction}")
        if self.nbytes is not None and not 0 <= self.nbytes <= MOST_BYTES:
            raise ValueError(f"no number of bytes: {self.nbytes}")
        if self.fraction is not None and not 0 <= self.fraction <= 1:
            raise ValueError(f"no part of a budget: {self.fraction}")

    def ceiling(self, budget_bytes: int) -> int:
        """Return what these pages may take of a budget, no more than that."""
        if self.nbytes is not None:
            return min(self.nbytes, budget_bytes)
        return min(int(budget_bytes * (self.fraction or 0)), budget_bytes)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a directory may take on the disk, who said so, and shares: at most one for each kind
    and name. Raises ValueError for what no directory can have."""

    nbytes: int
    set_by: SetBy
    shares: tuple[Share, ...] = ()
    _named: Mapping[tuple[ShareKind, str], Share] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.nbytes <= MOST_BYTES:
            raise ValueError(f"no number of bytes: {self.nbytes}")
        named = {(share.kind, share.name): share for share in self.shares}
        if len(named) < len(self.shares):
            raise ValueError("two shares of one name")
        object.__setattr__(self, "_named", named)

    def share(self, kind: ShareKind, name: str) -> Share | None:
        """Return the share with just this name, None without one."""
        return self._named.get((kind, name))


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
        budget = Budget(wanted_bytes, "store", known.shares)
        return Agreement(budget, budget != known, None, "")
    return _differs(known, wanted_bytes)


def _agree_derived(
    known: Budget | None, wanted_bytes: int, alone: bool, used_bytes: int
) -> Agreement:
    if known is not None and (known.set_by != "free space" or not alone):
        return Agreement(known, False, None, "")
    least = 0 if alone else used_bytes
    budget = Budget(max(wanted_bytes, least), "free space", () if known is None else known.shares)
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

    Raises OSError, and ValueError for more shares than a file has room for. `names` lives for as
    long as somebody may write with it.
    """
    fs = fs or FileSystem()
    raw = _encoded(budget)
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"{len(budget.shares)} shares are more than {BUDGET_FILE} has room for")
    if not fs.exists(cold_dir) or not fs.identity(cold_dir)[-1] or is_newer(cold_dir, fs):
        return False
    # A torn file is no budget, and a person's word is not lost with the power. What a store sets it
    # sets again.
    durability: Durability = "fsync" if budget.set_by == "quota" else "none"
    names.replace(os.path.join(cold_dir, BUDGET_FILE), raw, fs, durability)
    if durability != "none":
        fs.sync_directory(cold_dir, durability)
    return True


def is_newer(cold_dir: Path, fs: FileSystem | None = None) -> bool:
    """True when a directory's file was written by a newer version, which may have said more than
    this one understands; raises OSError."""
    return _version(_read(cold_dir, fs or FileSystem())) > VERSION


def file_bytes(budget: Budget) -> int:
    """Return what a directory has to count for the file, its name aside: for itself, one that takes
    its place with a share more, and the moment at which both are there.

    While a file is small, the room that is left for small files is enough for the second one.
    """
    size = len(_encoded(budget))
    return SMALL_FILE_BYTES if 2 * size <= SMALL_FILE_BYTES else 2 * (size + SMALL_FILE_BYTES)


def _encoded(budget: Budget) -> bytes:
    return json.dumps(document_of(budget), indent=1, sort_keys=True).encode() + b"\n"


def document_of(budget: Budget) -> dict[str, object]:
    """Return a budget as plain values: its file's content."""
    shares: dict[str, dict[str, dict[str, int | float]]] = {}
    for share in budget.shares:
        of_kind = shares.setdefault(share.kind, {})
        if share.nbytes is not None:
            of_kind[share.name] = {"bytes": share.nbytes}
        elif share.fraction is not None:
            of_kind[share.name] = {"fraction": share.fraction}
    said = {"version": VERSION, "bytes": budget.nbytes, "set_by": budget.set_by}
    return {**said, "shares": shares}


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
    return Budget(cast(int, nbytes), set_by, tuple(_shares(document.get("shares"))))


def _shares(document: object) -> list[Share]:
    """Return the shares that can be understood."""
    found = []
    for kind in KINDS:
        named = document.get(kind) if isinstance(document, dict) else None
        for name, most in (named if isinstance(named, dict) else {}).items():
            nbytes, fraction = (
                (most.get("bytes"), most.get("fraction"))
                if isinstance(most, dict)
                else (None, None)
            )
            if _is_bytes(nbytes):
                found.append(Share(kind, name, nbytes=nbytes))
            elif _is_fraction(fraction):
                found.append(Share(kind, name, fraction=fraction))
    return found


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


def _is_fraction(value: object) -> bool:
    # No number that is not finite lies between these.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
