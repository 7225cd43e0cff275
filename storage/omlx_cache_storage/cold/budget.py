"""The budget of a cold directory: one for all processes that use it.

Its file says how many bytes the directory may take, and who set that. A budget that a person set
with `omlx-cache quota` stays until that command changes it. Stores may change a budget that a store
set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from omlx_cache_storage.documents import format_size
from omlx_cache_storage.format.names import BUDGET_FILE

MOST_BYTES = (1 << 63) - 1
FAR_LESS = 10
"""A budget of less than this part of what a process would derive is likely to be an oversight."""

SetBy = Literal["free space", "store", "quota"]


@dataclass(frozen=True, slots=True)
class Budget:
    """The bytes that a directory may take on the disk, and who set them. Raises ValueError for a
    number that no directory can have.

    An earlier version wrote `shares`, ceilings for parts of the directory. This version keeps them
    in the file and ignores them.
    """

    nbytes: int
    set_by: SetBy
    shares: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.nbytes <= MOST_BYTES:
            raise ValueError(f"no number of bytes: {self.nbytes}")


class Agreement(NamedTuple):
    """The budget that a store follows when it opens a directory.

    `write`: the directory's file must say `budget` from now on. `note`: one line for a person whose
    setting differs, or "". A store whose own setting is less than `budget` stops writing at its
    setting, and deletes nothing for it.
    """

    budget: Budget
    write: bool
    note: str


def agree(
    known: Budget | None, wanted_bytes: int, *, derived: bool, alone: bool, used_bytes: int
) -> Agreement:
    """Return the budget that counts when a store that wants so much opens; decides only.

    `known`: what the directory's file says; `derived`: `wanted_bytes` comes from free space, no
    person chose it; `alone`: no other process uses the directory, which holds `used_bytes`. Beside
    peer processes, no budget is returned that would make them evict pages.
    """
    # Peer processes may have a budget that no file says: it is at least the bytes in use.
    before = known or Budget(used_bytes, "free space")
    if derived:
        is_ours = known is None or (alone and known.set_by == "free space")
        wanted = replace(before, nbytes=wanted_bytes if alone else max(wanted_bytes, used_bytes))
    else:
        is_free = before.set_by == "free space" or (alone and before.set_by == "store")
        is_ours = is_free and (alone or used_bytes <= wanted_bytes)
        wanted = replace(before, nbytes=wanted_bytes, set_by="store")
    budget = wanted if is_ours else before
    is_far_less = budget.set_by != "free space" and budget.nbytes < wanted_bytes // FAR_LESS
    is_told = is_far_less if derived else budget.nbytes != wanted_bytes
    note = _note(budget, wanted_bytes, derived=derived) if is_told else ""
    if derived and budget.set_by == "free space" and budget.nbytes <= used_bytes:
        note = CROWDED.format(format_size(budget.nbytes))
    return Agreement(budget, is_ours and budget != known, note)


def _note(budget: Budget, wanted_bytes: int, *, derived: bool) -> str:
    limit = (
        f"the directory's budget is {format_size(budget.nbytes)} for all processes, set by "
        f"{WORDS[budget.set_by]}"
    )
    if derived:
        return (
            f"{limit}; with `omlx-cache quota auto` it follows the free space: "
            f"{format_size(wanted_bytes)}"
        )
    does = (
        "writes only while the directory holds less: restart it with more cold_bytes"
        if wanted_bytes < budget.nbytes
        else "goes by the budget, which `omlx-cache quota` changes"
    )
    return f"{limit}; this process was told {format_size(wanted_bytes)} and {does}"


CROWDED: Final = (
    "others fill the disk: by its free space the budget is {}, which the stored pages take, so a "
    "new page evicts an old one; free room on the disk, then `omlx-cache quota auto`"
)
IGNORED_SHARES: Final = (
    f"{BUDGET_FILE} has shares that an earlier version set, and they do not count any more: give a "
    "tenant, model or namespace a cold_dir of its own; `omlx-cache quota SIZE` takes them out"
)
WORDS: Final[Mapping[SetBy, str]] = {
    "free space": "the free space that the disk had",
    "store": "a store's cold_bytes",
    "quota": "`omlx-cache quota`",
}
