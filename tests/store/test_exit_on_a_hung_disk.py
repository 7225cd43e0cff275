"""A disk that answers no more: `close` returns at its deadline, and the process ends with it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kit.examples import some
from kit.storage import Story, commit, open_store

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from kit.storage import Story, commit, open_store
from omlx_cache import store as module
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.io_threads import came

signal.signal(signal.SIGINT, signal.default_int_handler)
module.CLOSE_SECONDS = 1.0
directory, in_flight, end = sys.argv[1:]

class HungDisk(FileSystem):
    '''Blocks in the system for ever: nobody writes into the pipe.'''
    hangs = ()
    reached = threading.Semaphore(0)
    pipe = os.pipe()[0]

    def open(self, path, *, writing=False):
        if not writing:
            self.wait("read")
        return super().open(path, writing=writing)

    def write(self, path, pieces, durability):
        self.wait("write")
        return super().write(path, pieces, durability)

    def remove(self, path):
        self.wait("remove")
        super().remove(path)

    def wait(self, operation):
        if operation in self.hangs:
            self.reached.release()
            os.read(self.pipe, 1)

disk, story = HungDisk(), Story(nbytes=4096)
store = open_store(Path(directory), disk)
stored = story.ids(1, 2, 3)

def elsewhere(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert disk.reached.acquire(timeout=30)

def restore():
    for page in stored:
        store.meta(page)

def begin():
    store.restores.reads.submit(store.meta, stored[0])
    assert disk.reached.acquire(timeout=30)

if in_flight == "write":
    disk.hangs = ("write",)
    commit(store, Story("other"), 1, 2)
    assert disk.reached.acquire(timeout=30)
elif in_flight == "flush":
    disk.hangs = ("write",)
    commit(store, Story("other"), 1, 2)
    elsewhere(lambda: store.flush(None))
elif in_flight == "prefetch":
    disk.hangs = ("read",)
    store.prefetch(stored, bytearray)
    assert disk.reached.acquire(timeout=30)
elif in_flight == "begin":
    disk.hangs = ("read",)
    begin()
elif in_flight == "restore":
    disk.hangs = ("read",)
    elsewhere(lambda: store.read_pool.submit(restore).result())
elif in_flight == "clear" and end != "interrupt":
    disk.hangs = ("remove",)
    elsewhere(lambda: store.clear(story.namespace))

print("began", flush=True)
if end == "close":
    began = time.monotonic()
    store.close(1.0)
    print(time.monotonic() - began, flush=True)
elif end == "interrupt":
    disk.hangs = ("read", "write", "remove")
    calls = {
        "flush": store.flush,
        "clear": lambda: store.clear(story.namespace),
        "restore": lambda: came(store.read_pool.submit(restore)),
    }
    calls[in_flight]()
"""


@pytest.mark.parametrize(
    ("in_flight", "end"),
    some(
        [
            *(
                (each, "close")
                for each in ("write", "flush", "prefetch", "begin", "restore", "clear")
            ),
            *((each, "exit") for each in ("write", "restore")),
            *((each, "interrupt") for each in ("flush", "restore", "clear")),
        ],
        ("write", "close"),
        ("restore", "exit"),
        ("clear", "interrupt"),
    ),
)
def test_the_process_ends_within_the_deadline(tmp_path: Path, in_flight: str, end: str) -> None:
    with open_store(tmp_path) as store:
        commit(store, Story(nbytes=4096), 1, 2, 3)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), in_flight, end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        began = time.monotonic()
        if end == "interrupt":
            # One that comes before the call ends the process all the same.
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
        # Not by `communicate`: the line that was read may have brought the next along.
        out = process.stdout.read()
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert line == "began\n", err
    assert process.returncode == (-signal.SIGINT if end == "interrupt" else 0), err
    assert time.monotonic() - began < 10
    if end == "close":
        assert float(out) < 1.5
