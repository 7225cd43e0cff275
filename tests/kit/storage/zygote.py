"""A process that stores pages until it is killed, told over pipes when to go on.

Reads `DIRECTORY ROUND STEPS POLICY` lines. For each it forks a child that writes chains of pages in
a loop and prints `start PID`, then `step NAME` before each of the first STEPS touches of the file
system, for which it waits for a byte, and `durable NUMBERS` after every flush. The loop has no end.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import omlx_cache.store  # noqa: F401  (loaded once, before the forks)
from kit.storage import Story, commit, open_store
from kit.storage.faults import enter_first
from omlx_cache_storage.cold.disk import Durability, FileSystem, StrPath
from omlx_cache_storage.page import Buffer

CHAIN = 4
RECORD_BYTES = 4096
"""What is written of the ledger at a time, but for the blanks that it begins with."""


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class SteppedDisk(FileSystem):
    """Tells what it is about to do, and waits for a byte, for a number of steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def _enter(self, name: str, *_given: object) -> None:
        if self.left > 0:
            self.left -= 1
            say("step", name)
            os.read(0, 1)

    def make_directory(self, path: StrPath) -> bool:
        if not os.path.isdir(path):
            self._enter("make_directory")
        return super().make_directory(path)

    def open(self, path: StrPath, *, writing: bool = False) -> int:
        if writing and not os.path.exists(path):
            self._enter("open")
        return super().open(path, writing=writing)

    def poke(self, fd: int, data: bytes, offset: int) -> None:
        self._enter("poke")
        half = len(data) // 2
        if self.left > 0 and len(data) < RECORD_BYTES:
            super().poke(fd, data[:half], offset)
            self._enter("poke a half")
            super().poke(fd, data[half:], offset + half)
        else:
            super().poke(fd, data, offset)

    def write(self, path: StrPath, pieces: Sequence[Buffer], durability: Durability) -> int:
        self._enter("write")
        if self.left <= 0:
            return super().write(path, pieces, durability)
        whole = b"".join(bytes(memoryview(piece)) for piece in pieces)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            for part in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
                self._enter("write a half")
                file.write(part)
                file.flush()
            return os.fstat(file.fileno()).st_blocks * 512


enter_first(SteppedDisk, ("resize", "reserve", "publish", "set_times", "remove"))


def child(directory: Path, number: int, steps: int, policy: str) -> None:
    say("start", os.getpid())
    durability = "none" if steps else "fsync"
    store = open_store(directory, SteppedDisk(steps), write_policy=policy, durability=durability)
    turn = 0
    while True:
        story = Story(f"round {number} turn {turn}")
        commit(store, story, *range(1, CHAIN + 1))
        if turn % 2:
            store.demote(story.ids(CHAIN))
        if store.flush():
            say("durable", turn)
        turn += 1


def main() -> None:
    for line in iter(_line, ""):
        directory, number, steps, policy = line.split("\t")
        pid = os.fork()
        if pid == 0:
            try:
                child(Path(directory), int(number), int(steps), policy)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        say("ended", os.waitstatus_to_exitcode(status))


def _line() -> str:
    text = b""
    while (byte := os.read(0, 1)) and byte != b"\n":
        text += byte
    return text.decode()


if __name__ == "__main__":
    main()
    sys.exit(0)
