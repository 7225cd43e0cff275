"""A bar on standard error of a terminal; imports rich."""

import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from omlx_cache_daemon.render import uses_styles


class Bar:
    """Draws itself from a thread of its own until it is closed, and leaves its last state.

    `counted(done, total)` says both for people.
    """

    def __init__(
        self, title: str, total: int | None, counted: Callable[[int, int | None], str]
    ) -> None:
        # One that leads to a file or a pipe must not come out on standard error.
        shares_terminal = sys.stdout.isatty()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            _Counted(counted),
            TimeRemainingColumn(),
            console=Console(stderr=True, color_system="auto" if uses_styles(sys.stderr) else None),
            redirect_stdout=shares_terminal,
        )
        self._task = self._bar.add_task(title, total=total)
        self._bar.start()

    def update(self, done: int, total: int | None) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Draw the last state, and give the line and the cursor back."""
        self._bar.stop()


class _Counted(ProgressColumn):
    """What is done of how much."""

    def __init__(self, counted: Callable[[int, int | None], str]) -> None:
        super().__init__()
        self._counted = counted

    def render(self, task: Task) -> Text:
        total = None if task.total is None else int(task.total)
        return Text(self._counted(int(task.completed), total))
