"""Ends that clean up: a signal that would end a process at once raises an exception instead."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_SHELL_SIGNAL = 128
"""A shell's exit code of a process that a signal ended is this and the signal's number."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP raise SystemExit in the main thread, which undoes what was done
    to a terminal. Does nothing in another thread, nor where somebody handles them already."""
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
