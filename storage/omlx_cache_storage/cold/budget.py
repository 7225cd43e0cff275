"""The budget of a cold directory: one for all processes that use it.

Its file says how many bytes the directory may take, and who said so. What a person set with
`omlx-cache quota` stays until that changes it; what stores set, stores change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from omlx_cache_storage.format.names import BUDGET_FILE

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
