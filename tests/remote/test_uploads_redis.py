"""Uploads over a real server: killed, twice at once, and hanging."""

import contextlib
from pathlib import Path

import pytest

from kit.children import kill_9, program, said
from kit.remote.processes import NotYet, eventually
from kit.remote.redis_servers import RedisServer
from kit.storage import Story, bytes_of, open_store, read_cold
from kit.units import KIB
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.page import PageId, Placed
from omlx_cache_storage.remote.redis_engine import PART_BYTES

LARGE = 6 * PART_BYTES
_SENDER = """
import sys
from pathlib import Path
from kit.storage import Story, commit, open_store
url, directory, name, size, first, last = sys.argv[1:7]
numbers = range(int(first), int(last) + 1)
with open_store(
    Path(directory), remote=url, hot_bytes="1GiB", queue_bytes="512MiB", cold_bytes="2GiB",
) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    commit(store, Story(name, nbytes=int(size)), *numbers)
    print("stored", flush=True)
    sent = store.uploads.flush(60)
    remote = store.stats().remote
    print(sent, remote.written_pages, remote.failed_pages, remote.dropped_pages, flush=True)
    sys.stdin.readline()
"""


def _begin(child: object) -> None:
    stdin = child.stdin
    stdin.write("\n")
    stdin.flush()


def _has(server: RedisServer) -> int:
    return len(server.ask("KEYS", "*-paged"))


@pytest.mark.parametrize("keys", [1, 3, 8])
def test_of_a_sender_that_was_killed_no_reader_sees_half_a_page(
    keys: int, server: RedisServer, tmp_path: Path
) -> None:
    """It is killed once so many keys are there: parts of a page come before its head."""
    story = Story("large", nbytes=LARGE)
    with program(_SENDER, server.url, tmp_path / "a", "large", str(LARGE), "1", "4") as child:
        assert said(child) == "ready\n"
        _begin(child)

        def some() -> None:
            if server.ask("DBSIZE") < keys:
                raise NotYet("not so many keys")

        eventually(some, "sending")
        kill_9(child)
    whole = _has(server)
    with open_store(
        tmp_path / "b", remote=server.url, remote_writes="off", hot_bytes="64MiB"
    ) as store:
        pages = story.ids(*range(1, 5))
        found = store.remote.store.present([Placed(story.namespace, page) for page in pages])
        assert [info is not None for info in found] == [n < whole for n in range(4)]
        for number, info in enumerate(found, 1):
            if info is not None:
                assert _read(store.remote, pages[number - 1]) == bytes_of(story.page(number))


def test_two_servers_of_one_directory_send_each_page_once(
    server: RedisServer, tmp_path: Path
) -> None:
    count = 60
    arguments = (server.url, str(tmp_path), "shared", str(4 * KIB), "1", str(count))
    with program(_SENDER, *arguments) as one, program(_SENDER, *arguments) as two:
        for child in (one, two):
            assert said(child) == "ready\n"
        for child in (one, two):
            _begin(child)
        written = []
        for child in (one, two):
            assert said(child) == "stored\n"
            sent, pages, failed, _dropped = said(child).split()
            assert (sent, failed) == ("True", "0")
            written.append(int(pages))
    assert _has(server) == count
    assert sum(written) == count
    print(f"written by each: {written}; SET: {server.calls('set')} for {count} pages")


def _read(remote: object, page: PageId) -> bytes | None:
    with contextlib.suppress(PageError):
        return read_cold(remote, page)
    return None
