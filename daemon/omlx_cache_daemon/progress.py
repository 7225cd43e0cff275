"""How far a long command is: a bar on a terminal, a line for every tenth elsewhere."""

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from omlx_cache_daemon.process import sigterm_raises
from omlx_cache_daemon.render import is_interactive, quantity, text, uses_styles

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress:
    """Counts work on standard error, and never fails for want of a reader. `title` is a verb
    ("verifying"), `unit` "bytes" or the plural of the counted things. A bar takes the terminal's
    last line, which rich draws from a thread of its own. One thread may use it."""

    def __init__(self, title: str, total: int, *, unit: str, shown: bool = True) -> None:
        self._title, self._unit, self._total, self._done = text(title), unit, total, 0
        self._shown, self._tenth = shown, 0
        self._bar: Bar | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._shown:
            self._open.enter_context(sigterm_raises())
            if is_interactive(sys.stderr):
                self._bar = self._open.enter_context(self._new_bar())
                self._bar.add_task(self._title, total=self._total, counted=self._counted())
        return self

    def __exit__(self, *ended: object) -> None:
        self._open.close()
        self._shown = False

    def advance(self, count: int = 1) -> None:
        self.update(self._done + count)

    def update(self, done: int) -> None:
        self._done = done
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, counted=self._counted())
            return
        tenth = min(10, 10 * done // self._total) if self._total > 0 else 0
        if self._shown and tenth > self._tenth:
            self._tenth = tenth
            try:
                sys.stderr.write(f"{self._title}: {10 * tenth} % ({self._counted()})\n")
                sys.stderr.flush()
            except OSError:
                # No reader is left: the work goes on.
                self._shown = False

    def _new_bar(self) -> "Bar":
        # Only here: rich takes longer to import than most commands run.
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        return Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[counted]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True, color_system="auto" if uses_styles(sys.stderr) else None),
            # One that leads to a file or a pipe must not come out on standard error.
            redirect_stdout=sys.stdout.isatty(),
        )

    def _counted(self) -> str:
        """Return `3 of 10 prompts`, or `1.2 GiB of 4 GiB`."""
        amounts = " of ".join(quantity(self._unit, n) for n in (self._done, self._total))
        return amounts if self._unit == "bytes" else f"{amounts} {self._unit}"
