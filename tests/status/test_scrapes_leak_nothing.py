"""Thousands of scrapes, in every way that ends: no thread, no descriptor, no memory stays."""

import gc
import http.client
import os
import sys
import threading
from pathlib import Path

import pytest

from kit.status import get
from kit.storage import Story, commit, open_store
from omlx_cache.control.server import ApiServer


def _blocks() -> int:
    """Return how many pieces of memory the interpreter has given out."""
    gc.collect()
    return sys.getallocatedblocks()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def _threads() -> int:
    gone = [t for t in threading.enumerate() if t.name == "omlx-cache-status-client"]
    for thread in gone:
        thread.join(20)
    return threading.active_count()


def _scrape(server: ApiServer, times: int) -> None:
    kinds = ("text/plain", "application/openmetrics-text", "*/*", "garbage;q=x")
    paths = ("/metrics", "/metrics", "/metrics", "/status/overview.json", "/nothing", "/status")
    for number in range(times):
        connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
        accept = {"Accept": kinds[number % len(kinds)]}
        connection.request("GET", paths[number % len(paths)], headers=accept)
        if number % 7:
            connection.getresponse().read()
        # Every seventh client leaves without its answer.
        connection.close()
    # Clients are taken in the order in which they came: with this one all have been.
    assert get(server, "/metrics")[0] == 200


@pytest.mark.parametrize(
    "times", [1000, pytest.param(10_000, marks=pytest.mark.nightly)], ids=["some", "many"]
)
def test_scrapes_leave_nothing(tmp_path: Path, times: int) -> None:
    with open_store(tmp_path) as store:
        commit(store, Story("llama"), 1, 2)
        server = store.serve_status()
        _scrape(server, 50)
        threads, descriptors = _threads(), _descriptors()
        grown = []
        for _ in range(4):
            before = _blocks()
            _scrape(server, times // 4)
            grown.append(_blocks() - before)
        assert _threads() == threads
        assert _descriptors() == descriptors
        # One block for each scrape would be a leak; the store's own threads have theirs at times.
        assert min(grown) < times / 8
