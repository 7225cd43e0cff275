"""The process of a command that runs for long: its log, its progress, and its end."""

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, Self

from omlx_cache.package import LEVELS, set_level
from omlx_cache.settings.names import variable
from omlx_cache_daemon.render import is_interactive, quantity, text, uses_styles

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_FORMAT = "%(asctime)s - %(levelname)s - %(message)s"
_SHELL_SIGNAL = 128
"""A process that a signal ended has this and the signal's number as its exit code."""


def show_logs(
    flag: str | None, default: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Have messages shown on standard error, and return the setting that this was not read from:
    `log_level`, or nothing where the environment has it.

    `flag` counts for everything, as in mlx-lm's server. Without it `OMLX_CACHE_LOG_LEVEL`, else
    `default`, counts for this project; other packages show `info` at most, since in more detail
    they log what clients send. A bad variable is for `CacheSettings` to refuse.
    """
    asked = environ.get(variable("log_level"))
    word = (asked or "").strip().lower()
    level = (flag or (word if word in LEVELS else default)).lower()
    number = logging.getLevelNamesMapping()[level.upper()]
    # transformers would say that it did not find PyTorch, which is not needed here.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    logging.basicConfig(level=number if flag else max(number, logging.INFO), format=_FORMAT)
    set_level(level)
    return {} if flag is None and asked is not None else {"log_level": level}


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP raise SystemExit in the main thread, which restores the
    terminal. Does nothing in another thread, nor where the signals have handlers already."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) == signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(_SHELL_SIGNAL + number)


def end_process(code: int) -> NoReturn:
    """End the process of a command that ran a server, as the command's last statement.

    Not as Python ends: it waits for the threads that a second signal has left behind.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


class Progress:
    """Counts work on standard error, and never fails for want of a reader. `title` is a verb
    ("verifying"), `unit` "bytes" or the plural of the counted things. A bar takes the terminal's
    last line, which rich draws from a thread of its own. One thread may use it."""

    def __init__(self, title: str, total: int, *, unit: str, shown: bool = True) -> None:
        self._title, self._unit, self._total, self.done = text(title), unit, total, 0
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

    def update(self, done: int) -> None:
        self.done = done
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
        amounts = " of ".join(quantity(self._unit, n) for n in (self.done, self._total))
        return amounts if self._unit == "bytes" else f"{amounts} {self._unit}"
