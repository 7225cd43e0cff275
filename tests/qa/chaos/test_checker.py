"""The harness itself: it sees what is wrong, lost, over, stuck or left when something is."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omlx_cache.identity.namespace import NOWHERE
from omlx_cache_storage.cold.disk import FileSystem, StrPath
from omlx_cache_storage.cold.page_reader import PageReader
from qa.chaos.faults import Restarts
from qa.chaos.rounds import BETWEEN_RUNS, ROUNDS, run_round
from qa.chaos.tally import Tally
from qa.chaos.world import Sampler, World, roomy_options


@pytest.mark.nightly
def test_damage_that_nobody_verifies_is_wrong(
    world: Callable[..., World], tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unverified(self: PageReader, pieces: list[Any]) -> None:
        self._fs.read_into(self._fd, self._header.data_offset, pieces)
        self.was_read = True

    monkeypatch.setattr(PageReader, "_fill", unverified)
    ROUNDS[BETWEEN_RUNS](world(BETWEEN_RUNS, sessions=96))
    assert {failure.verdict for failure in tally.failures} == {"wrong"}


class ForgetfulDisk(FileSystem):
    """Loses every fifth file that it published."""

    def __init__(self) -> None:
        self.published = 0

    def set_times(self, path: StrPath, time_ns: int) -> None:
        super().set_times(path, time_ns)
        self.published += 1
        if self.published % 5 == 0:
            Path(path).unlink(missing_ok=True)


class ForgetfulRestarts(Restarts):
    def options(self) -> dict[str, object]:
        return {**super().options(), "durability": "none"}

    def disk(self) -> FileSystem:
        return ForgetfulDisk()


@pytest.mark.nightly
def test_a_disk_that_forgets_has_lost_something(world: Callable[..., World], tally: Tally) -> None:
    run_round(world("restart", sessions=80), ForgetfulRestarts)
    assert "lost" in {failure.verdict for failure in tally.failures}


def test_a_file_beyond_the_budget_is_over(world: Callable[..., World], tally: Tally) -> None:
    here = world("over")
    here.options = {**roomy_options(here.draw), "cold_bytes": 600 * 1024}
    with here.open():
        sampler = Sampler(here, 1)
        sampler.stop()
        assert tally.failures == []
        (here.cold_dir / "stranger").write_bytes(bytes(700 * 1024))
        sampler.sample()
    assert {failure.verdict for failure in tally.failures} == {"over"}


def test_a_call_beyond_its_deadline_is_stuck(world: Callable[..., World], tally: Tally) -> None:
    here = world("stuck", grace=0.01)
    with here.timed("wait", 0.0):
        threading.Event().wait(0.05)
    assert [failure.verdict for failure in tally.failures] == ["stuck"]


def test_an_open_session_is_left(world: Callable[..., World], tally: Tally) -> None:
    here = world("left")
    here.options = roomy_options(here.draw)
    here.open()
    here.store.requests.ask(NOWHERE, 1)
    here.close()
    here.check_closed()
    assert [failure.verdict for failure in tally.failures] == ["left"]
