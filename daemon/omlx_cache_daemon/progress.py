"""How far a long command is: a bar on a terminal, a line for every tenth elsewhere."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self

from omlx_cache_daemon.ending import sigterm_raises
from omlx_cache_daemon.render import is_interactive, quantity, text

_UNKNOWN_TOTAL_SECONDS = 10.0
"""How often a line comes where nobody knows how much there is to do."""


class _Shown(Protocol):
    def update(self, done: int, total: int | None) -> None: ...

    def close(self) -> None: ...


class Progress:
    """Counts work on standard error, and never fails for want of somebody to tell.

    `title` is a verb ("verifying"), `unit` "bytes" or the plural of what is counted. A `total` of
    None is not known (yet); `update` may tell it. `shown=False` tells nothing, which is for
    `--format json`. A bar takes the terminal's last line; what is printed on the same terminal
    meanwhile stands above it. One thread may use it.
    """

    def __init__(
        self, title: str, total: int | None = None, *, unit: str, shown: bool = True
    ) -> None:
        self._title, self._unit, self._wanted = text(title), unit, shown
        self._total = total
        self._done = 0
        self._shown: _Shown | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._wanted:
            self._open.enter_context(sigterm_raises())
            self._shown = self._begin()
            self._open.callback(self._shown.close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()
        self._shown = None

    def advance(self, count: int = 1) -> None:
        """Add to what is done."""
        self.update(self._done + count)

    def update(self, done: int, total: int | None = None) -> None:
        """Say what is done, and how much there is where that is known by now."""
        self._done = done
        self._total = self._total if total is None else total
        if self._shown is not None:
            self._shown.update(done, self._total)

    def _begin(self) -> _Shown:
        if not is_interactive(sys.stderr):
            return _Lines(self._title, self._unit)
        # Only here: rich takes longer to import than most commands run.
        from omlx_cache_daemon.progress_bar import Bar

        return Bar(self._title, self._total, lambda done, total: counted(done, total, self._unit))


def counted(done: int, total: int | None, unit: str) -> str:
    """Return `3 of 10 prompts`, `1.2GiB of 4GiB`, or without a total `3 prompts`."""
    amounts = [quantity(unit, amount) for amount in (done, total) if amount is not None]
    return " of ".join(amounts) + ("" if unit == "bytes" else f" {unit}")


class _Lines:
    """A line for each tenth that was reached, or every ten seconds where no total is known."""

    def __init__(self, title: str, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._unit, self._clock = title, unit, clock
        self._tenth = 0
        self._told_at = clock()

    def update(self, done: int, total: int | None) -> None:
        if total is None:
            now = self._clock()
            if now - self._told_at >= _UNKNOWN_TOTAL_SECONDS:
                self._told_at = now
                self._tell(counted(done, total, self._unit))
            return
        tenth = min(10, 10 * done // total) if total > 0 else 0
        if tenth > self._tenth:
            self._tenth = tenth
            self._tell(f"{10 * tenth} % ({counted(done, total, self._unit)})")

    def close(self) -> None:
        return

    def _tell(self, what: str) -> None:
        try:
            sys.stderr.write(f"{self._title}: {what}\n")
            sys.stderr.flush()
        except OSError:
            # Nobody reads it any more: the work goes on.
            self._tenth, self._told_at = 10, float("inf")
