"""A remote tier on a real server that is killed, suspended, emptied, full or closed to us: what is
read is right or a miss, and what a request waits for has a deadline."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kit.remote.processes import NotYet, eventually
from kit.remote.redis_servers import RedisServer, redis_server
from kit.storage import Story
from omlx_cache_storage import breaker
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.page import Placed
from omlx_cache_storage.remote import reasons
from omlx_cache_storage.remote.address import parse_address
from omlx_cache_storage.remote.engine import RemoteError, RemoteOptions
from omlx_cache_storage.remote.lookups import Asked, Inquiry
from omlx_cache_storage.remote.tier import RemoteTier, open_engine

BLOCK = 16
PAGES = 40
STORY = Story(nbytes=64 * 1024)
GENEROUS = 30.0
"""Many times what a deadline of these tests allows, on a machine with too much to do."""


@pytest.fixture(autouse=True)
def _probes_follow_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(breaker, "LONGEST_SECONDS", 0.02)


@contextlib.contextmanager
def _machine(server: RedisServer, **changes: Any) -> Iterator[RemoteTier]:
    seconds = {"lookup_seconds": 0.5, "read_seconds": 0.5}
    options = RemoteOptions(server.url, "cpu", **{**seconds, **changes})
    engine = open_engine(parse_address(server.url), options)
    tier = RemoteTier(engine, options, engine_name="redis", where=server.place)
    try:
        yield tier
    finally:
        assert tier.close(GENEROUS)
        assert tier.usage().held_bytes == 0


def _patient(server: RedisServer) -> "contextlib.AbstractContextManager[RemoteTier]":
    return _machine(server, lookup_seconds=GENEROUS, read_seconds=GENEROUS)


def _fill(tier: RemoteTier, pages: int = PAGES) -> None:
    for number in range(1, pages + 1):
        assert tier.store.write(STORY.page(number)) == "written"


def _ask(tier: RemoteTier, blocks: int = PAGES) -> Asked:
    chain = STORY.chain
    keys = [STORY.namespace, *(chain.key(n * BLOCK) for n in range(1, blocks + 1))]
    length = blocks * BLOCK
    return tier.ask(Inquiry(STORY.namespace, BLOCK, keys, "paged", 0, {}, length, chain.key))


def _get(tier: RemoteTier, number: int) -> bool:
    """Return whether a page came; what comes is right."""
    page = STORY.page(number)
    try:
        with tier.reading(page.meta.id) as opened:
            payload = bytearray(opened.meta.nbytes)
            opened.read_into([payload])
    except PageError:
        return False
    assert payload == page.payload
    return True


def _restore(tier: RemoteTier, midway: Callable[[], object] = lambda: None) -> list[bool]:
    """Read all pages, with something happening after the third; return which came."""
    came = []
    for number in range(1, PAGES + 1):
        came.append(_get(tier, number))
        if number == 3:
            midway()
    return came


def _answers(tier: RemoteTier) -> None:
    try:
        tier.store.look([Placed(STORY.namespace, STORY.id(1))])
    except RemoteError as error:
        raise NotYet(str(error)) from error


def test_a_server_that_is_killed_in_the_middle_of_a_restore_costs_the_rest_of_it() -> None:
    with redis_server() as server, _patient(server) as writer, _machine(server) as tier:
        _fill(writer)
        assert _ask(tier) == Asked(news=True)
        began = time.monotonic()
        came = _restore(tier, server.process.kill)
        assert time.monotonic() - began < GENEROUS
        assert came[:3] == [True] * 3
        for _ in range(4):
            assert _ask(tier, PAGES + 1).trouble in (reasons.UNREACHABLE, reasons.RESTING)
        assert _ask(tier, PAGES + 1) == Asked(False, reasons.RESTING)
        assert tier.find_all(STORY.ids(1)) == [None]
        server.start()
        eventually(lambda: _answers(tier), "the breaker closes again")
        # The new one has nothing: what was known is lost, and written again.
        assert not _get(tier, 1)
        assert tier.store.write(STORY.page(1)) == "written"
        assert _get(tier, 1)
        assert tier.usage().bad_pages == 0


def test_pages_that_a_full_server_evicted_are_lost_and_never_wrong() -> None:
    settings = ("maxmemory 3mb", "maxmemory-policy volatile-lru")
    with (
        redis_server(*settings) as server,
        _patient(server) as writer,
        _patient(server) as tier,
    ):
        _fill(writer, 4)
        assert _ask(tier, 4).news
        others = Story("others", nbytes=STORY.nbytes)
        for number in range(1, 60):
            writer.store.write(others.page(number))
        came = [_get(tier, number) for number in range(1, 5)]
        assert False in came
        usage = tier.usage()
        assert usage.lost_pages == came.count(False)
        assert (usage.bad_pages, usage.state) == (0, "ok")
