"""What a store keeps in its directory beside pages: the learning of its policies, and its allowance
to write."""

import contextlib
import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from omlx_cache.settings import CacheSettings
from omlx_cache.settings.derived import ANSWER_SECONDS
from omlx_cache.settings.sizes import format_size
from omlx_cache.settings.values import render
from omlx_cache_storage.calls import uninterrupted
from omlx_cache_storage.cold.small_files import (
    WORDS,
    Budget,
    Reuse,
    SetBy,
    read_budget,
    write_reuse,
)
from omlx_cache_storage.io_threads import DiskThread, within
from omlx_cache_storage.tiers import Tiers

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0
"""Seconds between writes: the learning that a killed process loses does not matter."""


class Allowance(NamedTuple):
    """The directory's budget, for all processes; `set_by` is None where no file says it.
    `own_limit_bytes`: this process writes only while the directory holds less, None without such a
    limit. `given_bytes`: its own setting, None without one."""

    directory: Path
    limit_bytes: int
    set_by: SetBy | None
    own_limit_bytes: int | None
    given_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
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

    def shown(self, setting: Mapping[str, object]) -> dict[str, object]:
        if self.given_bytes is not None:
            return dict(setting)
        # A share of the disk's free space counts the cache's own bytes as free.
        limit = {"value": self.limit_bytes, "rendered": render("cold_bytes", self.limit_bytes)}
        return {**setting, **limit, "origin": self.origin or setting["origin"]}

    def notes(self) -> list[str]:
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
    with contextlib.suppress(OSError):
        return read_budget(directory)
    return None


def allowance(settings: CacheSettings, limit_bytes: int, budget: Budget | None) -> Allowance:
    set_by: SetBy | None = None
    if budget is not None:
        limit_bytes, set_by = budget.nbytes, budget.set_by
    given = None if settings.is_derived("cold_bytes") else settings.cold_bytes
    is_lower = given is not None and given < limit_bytes
    return Allowance(settings.cold_dir, limit_bytes, set_by, given if is_lower else None, given)


def expected(settings: CacheSettings) -> Allowance:
    """Return the allowance of a store that is started now, if it is alone; waits for a file for
    `ANSWER_SECONDS`."""
    read = partial(known_budget, settings.cold_dir)
    budget = within(read, "omlx-cache-settings", ANSWER_SECONDS, None)
    stays = budget is not None and (
        budget.set_by == "quota" or (budget.set_by == "store" and settings.is_derived("cold_bytes"))
    )
    return allowance(settings, settings.cold_bytes, budget if stays else None)


class ReuseKeeper:
    """Writes the learning of a store's policies, when that is news, on a thread of its own.

    Any thread may call; nothing raises. `known` is the learning read at the start: a tier that
    learns nothing leaves its part as it was. `_after`, before which `step` begins no other write,
    belongs to its caller's thread.
    """

    def __init__(self, tiers: Tiers, cold_dir: Path | None, known: Reuse) -> None:
        self._tiers = tiers
        self._cold_dir = cold_dir
        self._known = known
        self._thread = DiskThread("omlx-cache-reuse")
        self._after = 0.0

    def step(self) -> None:
        """Have the learning written, once a minute at most; returns at once."""
        if time.monotonic() >= self._after and self._keep(0.0):
            self._after = time.monotonic() + PAUSE_SECONDS

    @uninterrupted
    def close(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._keep(timeout)
        self._thread.stop(max(0.0, deadline - time.monotonic()))

    def _keep(self, seconds: float) -> bool:
        if self._cold_dir is None or self._news() == self._known:
            return False
        self._thread.ask(partial(self._write, self._cold_dir), seconds, None)
        return True

    def _news(self) -> Reuse:
        cold, known = self._tiers.cold, self._known
        on_disk = None if cold is None else cold.learned()
        return Reuse(self._tiers.hot.learned() or known.memory, on_disk or known.disk)

    def _write(self, cold_dir: Path) -> None:
        try:
            news = self._news()
            if write_reuse(cold_dir, news):
                self._known = news
        except OSError as error:
            _log.debug("what was learned of reuse is not kept: %s", error)
        except Exception:
            _log.exception("what was learned of reuse is not kept")
