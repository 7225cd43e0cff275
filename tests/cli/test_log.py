"""`omlx-cache log` over a store in this process, and others in their own."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import pytest

from kit.children import Process, ended, told
from kit.storage import Story, commit_to_disk, open_store
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.identity.namespace import NOWHERE, Namespace
from omlx_cache.requests.log import FOLLOWED_SECONDS, AskedRequest
from omlx_cache_storage.keys import BlockKey

from .conftest import Cli, Start

Show = Callable[..., list[Any]]
Follow = Callable[..., tuple[Process, IO[str]]]

EMBED = """
import sys
from kit.storage import Story, commit
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.identity.namespace import NOWHERE
with BlockStore(CacheSettings(min_free_bytes=0, cold_bytes=2**24, hot_bytes=2**20)) as store:
    asked = store.requests.ask(NOWHERE, 5000)
    print("ready", flush=True)
    for line in sys.stdin:
        commit(store, Story(line.strip()), 1)
        assert store.flush()
        print("done", flush=True)
    asked.ended(0)
"""


@pytest.fixture
def store(cli: Cli, environment: dict[str, str]) -> Iterator[BlockStore]:
    with open_store(Path(environment["OMLX_CACHE_COLD_DIR"]), socket="auto") as store:
        yield store


@pytest.fixture
def shown(cli: Cli) -> Show:
    """Gives what the log prints as JSON, a line each."""

    def show(*arguments: str) -> list[Any]:
        result = cli("log", "--format", "json", *arguments)
        assert (result.code, result.err) == (0, "")
        return [json.loads(line) for line in result.out.splitlines()]

    return show


@pytest.fixture
def follow(environment: dict[str, str]) -> Iterator[Follow]:
    started: list[Process] = []

    def begin(*arguments: str) -> tuple[Process, IO[str]]:
        command = [sys.executable, "-m", "omlx_cache_daemon", "log", "--follow", "--format", "json"]
        process = subprocess.Popen(
            [*command, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, process.stdout

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=30)


def _asked(store: BlockStore, tokens: int = 5000) -> AskedRequest:
    document = {"label": "org/tiny-model", "salt": "text:0123456789abcdef"}
    return store.requests.ask(Namespace(BlockKey(b"\xab" * 32), document), tokens)


def _restore(store: BlockStore, times: int) -> None:
    asked = store.requests.ask(NOWHERE, 100)
    for _ in range(times):
        asked.restored(64, 0, 0.01, None)


def _fill(store: BlockStore, name: str, *numbers: int) -> Story:
    story = Story(name)
    commit_to_disk(store, story, *numbers)
    return story


# Requests.


def test_a_request_is_a_line_with_its_tokens_times_and_reason(
    store: BlockStore, cli: Cli, shown: Show
) -> None:
    asked = _asked(store)
    asked.restored(4900, 1200, 0.25, "evicted")
    asked.computed(100, 0.5)
    asked.ended(20)
    result = cli("log")
    header, cells = (line.replace(" s ", "s ").split() for line in result.out.splitlines())
    row = dict(zip(header, cells, strict=True))
    del row["ENDED"], row["TOTAL"], row["FIRST"]
    assert row == {
        "PID": str(store.identity().pid),
        **{"NUMBER": "1", "MODEL": "tiny-model", "SALT": "01234567", "TOKENS": "5,000"},
        **{"RESTORED": "4,900", "HOT": "3,700", "COLD": "1,200", "REMOTE": "0"},
        **{"COMPUTED": "100", "OUT": "20"},
        **{"RESTORE": "0.250s", "HELD": "0.000s", "COMPUTE": "0.500s", "REASON": "evicted"},
    }
    (document,) = shown()
    assert document == {
        "schema_version": 1,
        "pid": store.identity().pid,
        **asdict(asked.record),
    }


def test_the_latest_requests_of_all_stores_are_shown_and_of_one_on_request(
    store: BlockStore, start: Start, shown: Show
) -> None:
    for tokens in (10, 20, 30):
        _asked(store, tokens).ended(0)
    other, own = start(), store.identity().pid
    assert [(row["pid"], row["prompt_tokens"]) for row in shown("--limit", "2")] == [
        (own, 30),
        (other.pid, 5000),
    ]
    assert [row["prompt_tokens"] for row in shown("--pid", str(own))] == [10, 20, 30]


def test_a_request_is_followed_until_it_ends(store: BlockStore, follow: Follow) -> None:
    _asked(store, 10).ended(0)
    open_before = _asked(store, 20)
    process, out = follow()
    assert json.loads(out.readline())["prompt_tokens"] == 10
    _asked(store, 30).ended(0)
    assert json.loads(out.readline())["prompt_tokens"] == 30
    open_before.ended(0)
    last = json.loads(out.readline())
    assert (last["prompt_tokens"], last["number"]) == (20, 2)
    assert last["total_seconds"] > 0
    assert ended(process, signal.SIGINT) == (0, "")


def test_the_last_request_of_a_store_that_ends_is_shown(follow: Follow, start: Start) -> None:
    ending = start()
    process, out = follow("--begin")
    assert json.loads(out.readline())["total_seconds"] is None
    ending.communicate(timeout=30)
    assert json.loads(out.readline())["total_seconds"] > 0
    code, err = ended(process)
    assert (code, "the store has gone" in err, "Traceback" in err) == (69, True, False)


def test_a_store_that_nobody_follows_closes_at_once() -> None:
    with BlockStore(CacheSettings(hot_cache_only=True, socket="off")) as store:
        store.requests.ask(NOWHERE, 1).ended(0)
        began = time.monotonic()
    assert time.monotonic() - began < FOLLOWED_SECONDS


# Events.


def test_the_latest_events_are_a_plain_table_in_a_pipe(store: BlockStore, cli: Cli) -> None:
    story = _fill(store, "story", 1, 2)
    result = cli("log", "--events", "stored")
    header, *rows = [line.split() for line in result.out.splitlines()]
    assert header[:6] == ["TIME", "PID", "EVENT", "TIER", "NAMESPACE", "KEY"]
    keys = [page.key.hex()[:12] for page in story.ids(1, 2)]
    assert {(row[2], row[3], row[5]) for row in rows} == {
        ("stored", tier, key) for tier in ("hot", "cold") for key in keys
    }


def test_the_events_of_several_stores_are_gathered_in_their_order(
    store: BlockStore, start: Start, shown: Show
) -> None:
    other, own = start(), store.identity().pid
    story = _fill(store, "one", 1)
    assert told(other, "other") == "done"
    store.delete(dict.fromkeys(story.ids(1), 0), 10)
    events = shown("--events", "stored,removed")
    assert [(e["pid"], e["kind"], e["key"]) for e in events if e["tier"] == "hot"] == [
        (own, "stored", story.id(1).key.hex()),
        (other.pid, "stored", Story("other").id(1).key.hex()),
        (own, "removed", story.id(1).key.hex()),
    ]
    assert "other process" in {e["detail"] for e in events}
    assert {e["pid"] for e in shown("--events", "--pid", str(other.pid))} == {other.pid}


def test_a_reader_that_falls_behind_is_told_how_much_it_has_missed(
    store: BlockStore, follow: Follow
) -> None:
    process, out = follow("--events", "restored", "--limit", "1")
    _restore(store, 1)
    first = json.loads(out.readline())["number"]
    process.send_signal(signal.SIGSTOP)
    _restore(store, 20_000)
    process.send_signal(signal.SIGCONT)
    missed, seen = 0, [first]
    while seen[-1] < first + 20_000:
        line = json.loads(out.readline())
        missed += line.get("missed", 0)
        seen += [line["number"]] if "number" in line else []
    assert missed > 0
    assert len(seen) + missed == 20_001
    assert f"process {store.identity().pid} not seen" in ended(process, signal.SIGINT)[1]


@pytest.mark.nightly
def test_stores_that_come_and_go_are_followed_until_the_last_has_gone(
    follow: Follow, start: Start, store: BlockStore
) -> None:
    story = _fill(store, "story", 1)
    process, out = follow("--events", "stored,cleared", "--limit", "1")
    assert json.loads(out.readline())["key"] == story.id(1).key.hex()
    later = start()
    assert told(later, "other") == "done"
    pids = {json.loads(out.readline())["pid"] for _ in range(3)}
    assert pids == {store.identity().pid, later.pid}
    store.close()
    later.kill()
    code, err = ended(process)
    assert (code, "the store has gone" in err, "Traceback" in err) == (69, True, False)


def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are(cli: Cli) -> None:
    cli("log", "--events", "stored,lost").assert_refused(
        2, "'lost' is no kind of event: stored, restored"
    )


def test_batches_for_a_router_begin_with_all_that_is_remembered(
    store: BlockStore, shown: Show
) -> None:
    story = _fill(store, "story", 1, 2, 3)
    store.delete(dict.fromkeys(story.ids(3), 0), 10)
    (batch,) = shown("--kv")
    keys = [page.key.hex() for page in story.ids(1, 2, 3)]
    events = [(e["type"], e["medium"], e.get("block_hashes")) for e in batch["events"]]
    assert events[0] == ("AllBlocksCleared", "STORAGE", None)
    stored = [found for kind, medium, found in events if (kind, medium) == ("BlockStored", "CPU")]
    assert [key for hashes in stored for key in hashes] == keys
    assert events[-2:] == [
        ("BlockRemoved", "CPU", [keys[2]]),
        ("BlockRemoved", "STORAGE", [keys[2]]),
    ]


@pytest.mark.parametrize("several", [False, True])
def test_a_narrow_terminal_gets_the_columns_that_answer_first(
    several: bool,
    store: BlockStore,
    start: Start,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if several:
        start()
    asked = _asked(store)
    asked.restored(4900, 4900, 0.25, "evicted")
    asked.ended(20)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    header, *rows = cli("log", COLUMNS="80", NO_COLOR="1").out.splitlines()
    assert max(map(len, [header, *rows])) <= 80
    counts = ["NUMBER", "TOKENS", "RESTORED", "COMPUTED", "FIRST"]
    assert header.split() == (
        ["ENDED", "PID", *counts, "REASON"] if several else ["ENDED", *counts, "TOTAL", "REASON"]
    )
    assert "4,900" in rows[-1].split(), "a prompt from the disk is seen to be restored"
    assert ["-" in row.split()[:1] for row in rows] == ([True, False] if several else [False])
