"""The process of a command that runs for long: its log, and its end."""

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from omlx_cache.package import LEVELS, set_level
from omlx_cache.settings.names import variable

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
