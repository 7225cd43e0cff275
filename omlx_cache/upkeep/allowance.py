"""What a process may write to its cold directory, beside others that use it, and who said so."""

import contextlib
from pathlib import Path
from typing import NamedTuple

from omlx_cache.settings import CacheSettings
from omlx_cache.settings.sizes import format_size
from omlx_cache_storage.cold.budget import WORDS, Budget, SetBy
from omlx_cache_storage.cold.small_files import read_budget


class Allowance(NamedTuple):
    """The directory's budget, for all processes; `set_by` is None where no file says it.

    `own_limit_bytes`: this process writes only while the directory holds less, None without such a
    limit. `given_bytes`: what this process was told, None for nothing.
    """

    directory: Path
    limit_bytes: int
    set_by: SetBy | None
    own_limit_bytes: int | None
    given_bytes: int | None

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return {
            "limit_bytes": self.limit_bytes,
            "set_by": self.set_by,
            "own_limit_bytes": self.own_limit_bytes,
        }

    @property
    def origin(self) -> str:
        """Where the budget comes from, "" where this process's settings say it."""
        if self.set_by in (None, "free space") or self.given_bytes == self.limit_bytes:
            return ""
        return f"the directory's budget, set by {WORDS[self.set_by or 'store']}"

    def notes(self) -> list[str]:
        """Return a line for a person where this process was told another size."""
        if not self.origin or self.given_bytes is None:
            return []
        own = f"cold_bytes ({format_size(self.given_bytes)})"
        does = f"yields to it: {own}"
        if self.own_limit_bytes is not None:
            does = f"writes only while the directory holds less than {own}"
        return [
            f"the budget of {self.directory} is {format_size(self.limit_bytes)} for all processes, "
            f"set by {WORDS[self.set_by or 'store']}; this one {does}"
        ]


def known_budget(directory: Path) -> Budget | None:
    """Return the budget that a directory's file says, None where there is none; reads the file."""
    with contextlib.suppress(OSError):
        return read_budget(directory)
    return None


def allowance(settings: CacheSettings, limit_bytes: int, budget: Budget | None) -> Allowance:
    """Return what a store goes by whose directory has a budget, or else one of `limit_bytes`."""
    set_by: SetBy | None = None
    if budget is not None:
        limit_bytes, set_by = budget.nbytes, budget.set_by
    given = None if settings.is_derived("cold_bytes") else settings.cold_bytes
    is_lower = given is not None and given < limit_bytes
    return Allowance(settings.cold_dir, limit_bytes, set_by, given if is_lower else None, given)
