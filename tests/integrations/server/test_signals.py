"""Signals that come while the main thread waits: counted, and never waited for."""

import os
import signal
import subprocess
import sys
import threading
import time

from omlx_cache.integrations.mlx_lm.server.signals import Signals
from omlx_cache.integrations.mlx_lm.server.stopping import attended


def test_signals_at_any_moment_of_a_wait_hang_nothing() -> None:
    """An Event that the handler set would hang within some thousands: it takes a lock that the
    wait which it interrupts may hold."""
    send = f"os.kill({os.getpid()}, {int(signal.SIGTERM)}); time.sleep(0)"
    source = f"import os, time\nwhile os.getppid() == {os.getpid()}: {send}"
    with Signals() as signals, subprocess.Popen([sys.executable, "-c", source]) as bombarding:
        try:
            while signals.count < 5_000:
                signals.wait(0.001)
        finally:
            bombarding.kill()


def test_a_wait_ends_with_the_signal_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Signals() as signals:
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
        signals.wait(30)
        assert time.monotonic() - began < 10
        assert signals.count == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_a_terminal_that_closes_is_a_signal_unless_nohup_ignores_it() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.count == 1
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.count == 0
    finally:
        signal.signal(signal.SIGHUP, before)


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
        assert time.monotonic() - began < 4
    hung.set()
    next(t for t in threading.enumerate() if t.name == "omlx-cache-stop").join()


def test_signals_after_the_last_block_of_a_process_are_ignored() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with Signals(last=True):
            pass
        for number in before:
            os.kill(os.getpid(), number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
