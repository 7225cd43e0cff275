"""A store with a remote tier as people see it: over a real server, and after that was killed."""

import json
from collections.abc import Iterator

import pytest

from kit.children import Process, told
from kit.output import check_output
from kit.remote.redis_servers import RedisServer, redis_server
from kit.status import process
from omlx_cache.status.exposition import exposition
from omlx_cache_daemon.client import as_answer
from omlx_cache_storage.stats import Stats

from .conftest import Cli, Start

PASSWORD = "correct-horse-battery"
BRIEFLY = ("--seconds", "0.05")
EMBED = """
import sys
from contextlib import suppress
from kit.storage import Story
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.identity.namespace import Namespace
from omlx_cache_storage.remote.engine import RemoteError
from omlx_cache_storage.remote.lookups import Inquiry
page = Story("a").page(1)
settings = CacheSettings(min_free_bytes=0, cold_bytes=2**24, hot_bytes=2**20)
with BlockStore(settings, name="lab") as store:
    asked = store.requests.ask(Namespace(Story("a").namespace, {}), 100)
    asked.remote_tokens = 60
    asked.restored(96, 32, 0.002, "remote_lost")
    asked.ended(5)
    assert store.remote.store.write(page)
    keys = [page.meta.parent, page.meta.key]
    key = Story("a").chain.key
    store.remote.ask(Inquiry(page.meta.namespace, 16, keys, "paged", 0, {}, 16, key), 30)
    with store.remote.reading(page.meta.id) as opened:
        opened.read_into([bytearray(page.meta.nbytes)])
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(3):
            with suppress(RemoteError):
                store.remote.store.write(page)
        print("asked", flush=True)
"""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server("maxmemory 64mb", password=PASSWORD) as running:
        yield running


@pytest.fixture
def store(server: RedisServer, environment: dict[str, str], start: Start) -> Process:
    environment["OMLX_CACHE_REMOTE"] = f"redis://:{PASSWORD}@{server.place}"
    return start()


def _fail(server: RedisServer, store: Process) -> None:
    """Kill the server, and let the store find out."""
    server.process.kill()
    assert told(store) == "asked"


@pytest.mark.usefixtures("store")
def test_ps_stats_and_the_screen_show_the_store_and_what_it_took(
    cli_process: Cli, server: RedisServer
) -> None:
    shown = f"redis://:***@{server.place}"
    (listed,) = json.loads(cli_process("ps", "--format", "json").out)
    assert listed["remote"] == {"where": shown, "state": "ok"}
    assert "redis ok" in cli_process("ps").out
    stats = json.loads(cli_process("stats", "--format", "json").out)
    check_output("stats", stats)
    known = {"engine": "redis", "where": shown, "state": "ok", "written_pages": 1}
    assert known.items() <= stats["remote"].items()
    assert stats["remote"]["written_bytes"] > 0
    assert stats["requests"]["restored_remote_tokens"] == 60
    assert " remote   ok, -/s read, -/s written, " in cli_process("ps", "--watch").out
    assert "4 hot, 32 cold, 60 remote" in cli_process("log", "--events", "--format", "json").out


@pytest.mark.nightly
@pytest.mark.usefixtures("store")
def test_stats_and_metrics_say_how_long_its_look_ups_and_pages_took(cli_process: Cli) -> None:
    stats = json.loads(cli_process("stats", "--format", "json").out)
    metrics = exposition([process(stats=as_answer(Stats, stats))]).body.decode()
    for name in ("remote_lookup_seconds", "remote_page_read_seconds"):
        took = stats["histograms"][name]
        assert took["count"] == 1
        assert 0 < took["sum"] < 30
        assert f'omlx_cache_{name}_count{{pid="1",store="serve"}} 1.0' in metrics
        (line,) = [
            one for one in cli_process("stats", "--all").out.splitlines() if f".{name} " in one
        ]
        assert "1, mean " in line
        assert "95 % within" in line


@pytest.mark.nightly
def test_a_server_that_was_killed_is_seen_to_rest_and_why(
    cli_process: Cli, server: RedisServer, store: Process
) -> None:
    _fail(server, store)
    assert "redis resting (unreachable)" in cli_process("ps").out
    remote = json.loads(cli_process("stats", "--format", "json").out)["remote"]
    assert remote["state"].startswith("resting: remote_unreachable: ")
    assert remote["rests"] == 1
    assert sum(remote["errors"].values()) >= 3
    failed = [
        line for line in cli_process("log", "--events").out.splitlines() if " failed " in line
    ]
    assert any(" remote " in line and "remote_unreachable" in line for line in failed)
    assert "does without the store that machines share" in cli_process("doctor").out


def test_the_password_is_in_no_output(
    cli_process: Cli, server: RedisServer, store: Process
) -> None:
    _fail(server, store)
    as_json = ("--format", "json")
    calls = (
        *(("ps", *as_json), ("stats", "--all"), ("stats", *as_json), ("log", "--events", *as_json)),
        *(
            ("ps", "--watch"),
            ("config",),
            ("config", *as_json),
            ("doctor",),
            ("doctor", "--remote"),
        ),
    )
    for call in calls:
        ended = cli_process(*call, *BRIEFLY) if call[0] == "doctor" else cli_process(*call)
        assert "127.0.0.1" in ended.out or call[0] == "config", call
        assert PASSWORD not in ended.out + ended.err, call


@pytest.mark.usefixtures("store")
def test_why_says_what_the_store_had_to_do_with_it(cli_process: Cli) -> None:
    shown = cli_process("why").out
    assert "(32 from SSD, 60 from other machines, 4 from memory" in shown
    assert "had the page when it was asked, and not any more when the page was read" in shown
    assert "maxmemory" in shown
