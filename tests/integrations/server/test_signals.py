"""Signals that end a server: counted, and never waited for."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from omlx_cache.integrations.mlx_lm.serving import Signals, attended


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The process goes on after a test, with the handlers that it had."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_terminal_that_closes_is_a_signal_unless_nohup_ignores_it() -> None:
    for handler, count in ((signal.SIG_DFL, 1), (signal.SIG_IGN, 0)):
        signal.signal(signal.SIGHUP, handler)
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.count == count


def test_a_third_signal_waits_for_nothing() -> None:
    hung = threading.Event()

    def work(hurry: threading.Event) -> bool:
        hurry.wait(60)
        os.kill(os.getpid(), signal.SIGTERM)
        return hung.wait(60)

    with Signals() as signals:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        began = time.monotonic()
        assert attended(work, signals) is False
        assert time.monotonic() - began < 30
    hung.set()
    next(t for t in threading.enumerate() if t.name == "omlx-cache-stop").join()


def test_signals_after_the_block_are_ignored() -> None:
    with Signals():
        pass
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)


def test_a_thread_that_is_left_behind_does_not_keep_the_process() -> None:
    """Python would join it first, and mlx-lm's computes for as long as its chunk takes."""
    left = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    end = "from omlx_cache_daemon.process import end_process; end_process(3)"
    ended = subprocess.run([sys.executable, "-c", f"{left}; {end}"], timeout=30)
    assert ended.returncode == 3
