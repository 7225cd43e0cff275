"""`omlx-cache events` against real stores: one in this process, and one in another."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from kit.embedded import embedded_stores
from kit.storage import Story, commit, open_store
from omlx_cache import BlockStore
from omlx_cache_daemon.cli import main
from omlx_cache_daemon.event_reading import EventRows

Process = subprocess.Popen[str]
Show = Callable[..., list[Any]]
Follow = Callable[..., tuple[Process, IO[str]]]

_STORE = """
import sys
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**24, hot_bytes=2**20)) as store:
    print("ready", flush=True)
    for line in sys.stdin:
        commit(store, Story(line.strip()), 1)
        assert store.flush()
        print("done", flush=True)
"""


@pytest.fixture
def environment(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """For the commands and the store in this process too."""
    for name in ("OMLX_CACHE_RUNTIME_DIR", "OMLX_CACHE_COLD_DIR", "NO_COLOR"):
        monkeypatch.setenv(name, environment[name])
    return environment


@pytest.fixture
def store(environment: dict[str, str]) -> Iterator[BlockStore]:
    with open_store(Path(environment["OMLX_CACHE_COLD_DIR"]), socket="auto") as store:
        yield store


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[[], Process]]:
    with embedded_stores(_STORE) as run:
        yield lambda: run(environment)


def _commit_there(process: Process, name: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(name + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Show:
    """Gives what a command prints as JSON, a line each."""

    def show(*arguments: str) -> list[Any]:
        assert main(["events", *arguments]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return show


@pytest.fixture
def follow(environment: dict[str, str]) -> Iterator[Follow]:
    started: list[Process] = []

    def begin(*arguments: str) -> tuple[Process, IO[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "omlx_cache_daemon", "events", "--follow", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=30)


def _fill(store: BlockStore, name: str, *numbers: int) -> Story:
    story = Story(name)
    commit(store, story, *numbers)
    assert store.flush()
    return story


def test_the_latest_events_are_a_plain_table_in_a_pipe(
    store: BlockStore, capsys: pytest.CaptureFixture[str]
) -> None:
    story = _fill(store, "story", 1, 2)
    assert main(["events", "--kinds", "stored"]) == 0
    told = capsys.readouterr()
    header, *rows = [line.split() for line in told.out.splitlines()]
    assert header[:6] == ["TIME", "PID", "EVENT", "TIER", "NAMESPACE", "KEY"]
    keys = [page.key.hex()[:12] for page in story.ids(1, 2)]
    assert {(row[2], row[3], row[5]) for row in rows} == {
        ("stored", tier, key) for tier in ("hot", "cold") for key in keys
    }
    assert told.err == ""


def test_json_has_one_event_a_line_with_everything_that_is_known(
    store: BlockStore, shown: Show
) -> None:
    story = _fill(store, "story", 1, 2)
    (event,) = shown("--format", "json", "--limit", "1")
    assert (event["kind"], event["tier"]) == ("stored", "cold")
    assert event["key"] == story.id(2).key.hex()
    assert event["parent"] == story.id(1).key.hex()
    assert event["pid"] == store.identity().pid


def test_the_events_of_several_stores_are_gathered_in_their_order(
    store: BlockStore, start: Callable[[], Process], shown: Show
) -> None:
    other, own = start(), store.identity().pid
    story = _fill(store, "one", 1)
    _commit_there(other, "other")
    store.delete(dict.fromkeys(story.ids(1), 0), 10)
    events = shown("--kinds", "stored,removed", "--format", "json")
    assert [(e["pid"], e["kind"]) for e in events if e["tier"] == "hot"] == [
        (own, "stored"),
        (other.pid, "stored"),
        (own, "removed"),
    ]
    assert "other process" in {e["detail"] for e in events}
    only = shown("--pid", str(other.pid), "--format", "json")
    assert {e["pid"] for e in only} == {other.pid}


def test_an_event_is_shown_when_it_happens(follow: Follow, store: BlockStore) -> None:
    story = _fill(store, "story", 1)
    process, out = follow("--kinds", "stored,cleared", "--format", "json", "--limit", "1")
    assert json.loads(out.readline())["kind"] == "stored"
    store.clear(story.namespace)
    assert [json.loads(out.readline())["tier"] for _ in range(2)] == ["hot", "cold"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


def _restore(store: BlockStore, times: int) -> None:
    asked = store.requests.ask("", {}, 100)
    for _ in range(times):
        asked.restored(64, 0, 0.01, None)


def test_what_was_missed_in_several_answers_is_added_up() -> None:
    read = EventRows([], {7: 3}).and_(EventRows([], {7: 2, 8: 1}))
    assert read.missed == {7: 5, 8: 1}


def test_a_reader_that_falls_behind_is_told_how_much_it_has_missed(
    follow: Follow, store: BlockStore
) -> None:
    process, out = follow("--format", "json", "--kinds", "restored", "--limit", "1")
    _restore(store, 1)
    first = json.loads(out.readline())["number"]
    process.send_signal(signal.SIGSTOP)
    _restore(store, 40_000)
    process.send_signal(signal.SIGCONT)
    missed, seen = 0, [first]
    while seen[-1] < first + 40_000:
        line = json.loads(out.readline())
        missed += line.get("missed", 0)
        seen += [line["number"]] if "number" in line else []
    assert missed > 0
    assert len(seen) + missed == 40_001
    process.send_signal(signal.SIGINT)
    assert f"events of process {store.identity().pid} not" in process.communicate(timeout=30)[1]


@pytest.mark.nightly
def test_stores_that_come_and_go_are_followed_until_the_last_has_gone(
    follow: Follow, start: Callable[[], Process], store: BlockStore
) -> None:
    story = _fill(store, "story", 1)
    process, out = follow("--format", "json", "--kinds", "stored,cleared", "--limit", "1")
    assert json.loads(out.readline())["key"] == story.id(1).key.hex()
    later = start()
    _commit_there(later, "other")
    pids = {json.loads(out.readline())["pid"] for _ in range(3)}
    assert pids == {store.identity().pid, later.pid}
    store.close()
    later.kill()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 69
    assert "the store has gone" in err
    assert "Traceback" not in err


def test_a_reader_that_is_killed_costs_the_store_nothing(follow: Follow, store: BlockStore) -> None:
    process, out = follow("--format", "json")
    out.readline()
    process.kill()
    process.communicate(timeout=30)
    _fill(store, "story", 1)
    assert store.stats().events["stored"] == 2


def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["events", "--kinds", "stored,lost"]) == 2
    assert "'lost' is no kind of event: stored, restored" in capsys.readouterr().err


def test_batches_for_a_router_begin_with_all_that_is_remembered(
    store: BlockStore, shown: Show
) -> None:
    story = _fill(store, "story", 1, 2, 3)
    store.delete(dict.fromkeys(story.ids(3), 0), 10)
    (batch,) = shown("--kv")
    keys = [page.key.hex() for page in story.ids(1, 2, 3)]
    told = [(e["type"], e["medium"], e.get("block_hashes")) for e in batch["events"]]
    assert told[0] == ("AllBlocksCleared", "STORAGE", None)
    stored = [found for kind, medium, found in told if (kind, medium) == ("BlockStored", "CPU")]
    assert [key for hashes in stored for key in hashes] == keys
    assert told[-2:] == [
        ("BlockRemoved", "CPU", [keys[2]]),
        ("BlockRemoved", "STORAGE", [keys[2]]),
    ]
