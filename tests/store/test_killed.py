"""kill -9 at every step of a write, and while running freely: nothing wrong, lost or left."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.examples import some
from kit.storage import Story, disk_usage, expected_payload, files_in, read_cold
from omlx_cache_storage.cold.tier import ColdTier

CHAIN = 4
LIMIT = 256 * 2**20
FIRST_STEPS = 60
"""These make the directory and its ledger, agree on a budget and write two pages."""
NEXT_STEPS = 45
"""These clear up after the one before, and write two pages."""
NEW_STEPS = {"make_directory", "open", "resize"}
STEPS = {
    *("poke", "poke a half", "make_directory", "reserve"),
    *("write", "write a half", "publish", "set_times"),
}


class Zygote:
    """The process that forks writers, one at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kit.storage.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.durable: set[int] = set()

    def send(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def hear(self) -> list[str]:
        words = self.process.stdout.readline().decode().split()
        assert words, "the writer's process ended"
        if words[0] == "durable":
            self.durable.add(int(words[1]))
        return words

    def run(self, directory: Path, number: int, *, steps: int, policy: str) -> str:
        """Run one writer, kill it at its step `steps`; say where."""
        self.durable = set()
        self.send(f"{directory}\t{number}\t{steps}\t{policy}\n".encode())
        pid = seen = 0
        while seen < steps:
            words = self.hear()
            if words[0] == "start":
                pid = int(words[1])
            elif words[0] == "step":
                seen += 1
                if seen < steps:
                    self.send(b"g")
        where = " ".join(words[1:])
        os.kill(pid, signal.SIGKILL)
        while self.hear()[0] != "ended":
            pass
        return where


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.process.stdin.close()
    assert zygote.process.wait(30) == 0
    zygote.process.stdout.close()


def _check(directory: Path, number: int, durable: set[int]) -> None:
    """Open what a killed writer left, and see that it is all right."""
    with contextlib.closing(ColdTier(directory, LIMIT)) as tier:
        tier.open()
        assert tier.usage().state == "ok"
        assert files_in(directory, ".tmp-*") == []
        tier.check_integrity()
        assert disk_usage(directory) <= tier.usage().nbytes
        for entry in tier.listing():
            payload = expected_payload(entry.page, Story().nbytes)
            assert read_cold(tier, entry.page) == payload
        assert tier.usage().corrupt_pages == 0
        for turn in durable:
            story = Story(f"round {number} turn {turn}")
            assert all(page in tier for page in story.ids(*range(1, CHAIN + 1)))


@pytest.mark.parametrize("policy", some(["through", "lazy"], "through"))
def test_killed_at_every_step_of_the_first_writes(
    zygote: Zygote, tmp_path: Path, policy: str
) -> None:
    places = set()
    for step in range(1, NEXT_STEPS):
        places.add(zygote.run(tmp_path, step, steps=step, policy=policy))
        _check(tmp_path, step, zygote.durable)
    assert places >= STEPS


@pytest.mark.nightly
def test_killed_at_every_step_of_a_new_directory(zygote: Zygote, tmp_path: Path) -> None:
    places = set()
    for step in range(1, FIRST_STEPS):
        directory = tmp_path / str(step)
        places.add(zygote.run(directory, step, steps=step, policy="through"))
        _check(directory, step, zygote.durable)
    assert places >= NEW_STEPS | STEPS
