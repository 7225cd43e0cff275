"""The watchdog sees what a test leaves behind, and nothing that it has put away."""

import os
import threading
from pathlib import Path

from kit import leaks


def test_a_descriptor_left_open_is_named_and_a_closed_one_is_not(tmp_path: Path) -> None:
    before = leaks.now()
    left = os.open(tmp_path / "left", os.O_CREAT)
    os.close(os.open(tmp_path / "closed", os.O_CREAT))
    found = leaks.left_since(before)
    os.close(left)
    assert str(found) == f"descriptor {left} of {tmp_path / 'left'}"
    assert not leaks.left_since(before)


def test_garbage_is_not_left_behind(tmp_path: Path) -> None:
    class Holder:
        def __init__(self) -> None:
            self.itself = self
            self.descriptor = os.open(tmp_path / "file", os.O_CREAT)

        def __del__(self) -> None:
            os.close(self.descriptor)

    before = leaks.now()
    Holder()
    assert not leaks.left_since(before)


def test_a_thread_left_running_is_named_and_one_that_ends_is_not() -> None:
    before = leaks.now()
    stop = threading.Event()
    threading.Thread(target=stop.wait, name="omlx-cache-left").start()
    left = leaks.now().since(before)
    assert str(left) == "thread omlx-cache-left"
    stop.set()
    assert not leaks.left_since(before)
