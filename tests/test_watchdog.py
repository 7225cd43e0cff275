"""The watchdog sees what a test leaves behind, and nothing that it has put away."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from kit import leaks


def test_a_descriptor_left_open_is_named_and_a_closed_one_is_not(tmp_path: Path) -> None:
    before = leaks.now()
    left = os.open(tmp_path / "left", os.O_CREAT)
    os.close(os.open(tmp_path / "closed", os.O_CREAT))
    found = leaks.left_since(before, 0.1)
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
    threading.Thread(target=stop.wait, name="anybody-s").start()
    left = leaks.now().since(before)
    assert str(left) == "thread anybody-s"
    stop.set()
    assert not leaks.left_since(before)


LEAVING = """
import fcntl, os, subprocess, sys, tempfile, threading
from pathlib import Path

kept = []

def test_nothing(tmp_path):
    (tmp_path / "file").write_text("in its place")
    subprocess.run([sys.executable, "-c", ""], check=True)
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "file").write_text("and gone")

def test_thread():
    threading.Thread(target=threading.Event().wait, daemon=True, name="left").start()

def test_descriptor(tmp_path):
    os.open(tmp_path / "left", os.O_CREAT)

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))

def test_ended_child():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)

def test_lock():
    kept.append(open("pyproject.toml"))
    fcntl.flock(kept[-1], fcntl.LOCK_EX)

def test_temporary_directory():
    kept.append(tempfile.mkdtemp())

def test_runtime_file():
    Path(os.environ["OMLX_CACHE_RUNTIME_DIR"], f"{os.getpid()}-0.sock").touch()

def test_current_directory():
    Path("left.txt").write_text("left")

def test_end():
    kept[0].kill()
    kept[0].wait()
    kept[1].close()
    os.rmdir(kept[2])
"""


@pytest.mark.nightly
def test_each_kind_of_thing_left_behind_fails_its_test_and_names_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "kit.leaks", "-p", "no:cacheprovider", "-q"],
        cwd=tmp_path,
        env={
            **os.environ,
            "OMLX_CACHE_RUNTIME_DIR": str(runtime),
            "COLUMNS": "400",
            "LEAKS_SECONDS": "0.5",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    named = {
        test: line
        for line in ended.stdout.splitlines()
        if line.startswith("ERROR")
        for test in [line.partition("::")[2].partition(" ")[0]]
    }
    words = {
        "test_thread": "thread left",
        "test_descriptor": "descriptor ",
        "test_temporary_directory": f"file {tempfile.gettempdir()}/tmp-",
        "test_runtime_file": f"file {runtime}/",
        "test_current_directory": "file ./left.txt",
    }
    if sys.platform == "linux":
        words |= {"test_child": "process ", "test_ended_child": "process "}
        assert "lock FLOCK" in named.pop("test_lock")
    assert named.keys() == words.keys(), ended.stdout
    for test, word in words.items():
        assert f"left behind: {word}" in named[test]
