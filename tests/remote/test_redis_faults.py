"""A remote tier on a real server that is killed, suspended, emptied, full or closed to us: what is
read is right or a miss, and what a request waits for has a deadline."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kit.remote.processes import NotYet, eventually
from kit.remote.redis_servers import RedisServer, redis_server
from kit.storage import Story
from omlx_cache_storage import breaker
from omlx_cache_storage.errors import CorruptPage, PageError, PageUnreadable
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
        tier.check_integrity()
        assert tier.usage().held_bytes == 0


def _patient(server: RedisServer) -> "contextlib.AbstractContextManager[RemoteTier]":
    return _machine(server, lookup_seconds=GENEROUS, read_seconds=GENEROUS)


def _fill(tier: RemoteTier, pages: int = PAGES) -> None:
    for number in range(1, pages + 1):
        assert tier.write(STORY.page(number)) == "written"


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
    with tier.expect(STORY.ids(*range(1, PAGES + 1))):
        for number in range(1, PAGES + 1):
            came.append(_get(tier, number))
            if number == 3:
                midway()
    return came


def _answers(tier: RemoteTier) -> None:
    try:
        tier.present([Placed(STORY.namespace, STORY.id(1))])
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
        assert tier.write(STORY.page(1)) == "written"
        assert _get(tier, 1)
        assert tier.usage().bad_pages == 0


def test_a_server_that_hangs_in_the_middle_of_a_restore_costs_one_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(breaker, "FIRST_SECONDS", GENEROUS)
    monkeypatch.setattr(breaker, "LONGEST_SECONDS", GENEROUS)
    with redis_server() as server, _patient(server) as writer:
        _fill(writer)
        # A window of a few pages: most are still to be asked for when it hangs.
        options = RemoteOptions(server.url, "cpu", lookup_seconds=0.5, read_seconds=0.5)
        tier = RemoteTier(
            open_engine(parse_address(server.url), options),
            options,
            engine_name="redis",
            where="",
            ahead_bytes=4 * STORY.nbytes,
        )
        try:
            _ask(tier)
            try:
                came = _restore(tier, server.process.suspend)
                assert came[:3] == [True] * 3
                assert not any(came[12:])
                assert tier.resting
                usage = tier.usage()
                assert usage.rests == 1
                assert usage.late_reads >= 1
                assert _ask(tier, PAGES + 1) == Asked(False, reasons.RESTING)
            finally:
                server.process.resume()
                tier._back_off._breaker.ask_again()
            eventually(lambda: _answers(tier), "the breaker closes again")
            assert _restore(tier) == [True] * PAGES
        finally:
            assert tier.close(GENEROUS)


def test_a_look_up_of_a_server_that_hangs_is_late_and_the_next_ones_wait_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(breaker, "FIRST_SECONDS", GENEROUS)
    monkeypatch.setattr(breaker, "LONGEST_SECONDS", GENEROUS)
    with redis_server() as server, _machine(server, read_seconds=GENEROUS) as tier:
        assert _ask(tier, 2) == Asked(news=False)
        server.process.suspend()
        try:
            assert _ask(tier, 10) == Asked(False, reasons.TIMEOUT)
            assert {_ask(tier, blocks) for blocks in range(20, 60)} == {
                Asked(False, reasons.RESTING)
            }
        finally:
            server.process.resume()
        tier._back_off._breaker.ask_again()
        eventually(lambda: _answers(tier), "the breaker closes again")
        assert _ask(tier, 3).trouble == ""


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
            writer.write(others.page(number))
        came = [_get(tier, number) for number in range(1, 5)]
        assert False in came
        usage = tier.usage()
        assert usage.lost_pages == came.count(False)
        assert (usage.bad_pages, usage.state) == (0, "ok")


def test_a_server_that_is_full_and_may_not_evict_takes_nothing_and_still_gives() -> None:
    with (
        redis_server("maxmemory 3mb", "maxmemory-policy noeviction") as server,
        _patient(server) as tier,
    ):
        written = 0

        def fill() -> None:
            nonlocal written
            for number in range(1, 60):
                tier.write(STORY.page(number))
                written = number

        with pytest.raises(RemoteError) as raised:
            fill()
        assert raised.value.reason == "full"
        assert written > 5
        assert all(_get(tier, number) for number in range(1, written + 1))


def test_an_emptied_server_costs_misses_and_no_rest() -> None:
    with redis_server() as server, _patient(server) as writer, _machine(server) as tier:
        _fill(writer)
        _ask(tier)
        server.ask("FLUSHALL")
        assert _restore(tier) == [False] * PAGES
        assert tier.usage().lost_pages == PAGES
        assert tier.usage().state == "ok"
        _fill(writer)
        with _machine(server) as other:
            assert _ask(other).news
            assert _restore(other) == [True] * PAGES


def test_a_value_that_was_changed_on_the_server_is_refused() -> None:
    with redis_server() as server, _patient(server) as tier:
        _fill(tier, 2)
        (name,) = (
            key for key in server.ask("KEYS", "*") if STORY.id(2).key.hex().encode() in bytes(key)
        )
        server.ask("SETRANGE", name, 5000, b"planted")
        with pytest.raises(CorruptPage), tier.reading(STORY.id(2)) as opened:
            opened.read_into([bytearray(opened.meta.nbytes)])
        assert _get(tier, 1)
        assert tier.usage().bad_pages == 1


def test_a_wrong_password_is_a_miss_with_a_reason_and_is_not_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with redis_server(password="correct-horse") as server:
        with _machine(server, password="hunter2") as tier:
            assert _ask(tier, 3) == Asked(False, reasons.DENIED)
            for blocks in range(4, 9):
                _ask(tier, blocks)
            assert tier.resting.startswith(reasons.DENIED)
            with pytest.raises(RemoteError):
                tier.write(STORY.page(1))
            said = f"{tier.usage()} {tier.resting} {caplog.text}"
            assert "hunter2" not in said
        with _machine(server, password="correct-horse") as tier:
            _fill(tier, 2)
            assert _get(tier, 1)


def test_a_server_that_never_was_costs_little_and_is_used_when_it_comes() -> None:
    with redis_server() as server:
        server.process.kill()
        with _machine(server) as tier:
            for blocks in range(2, 12):
                assert _ask(tier, blocks).trouble in (reasons.UNREACHABLE, reasons.RESTING)
            server.start()
            eventually(lambda: _answers(tier), "the breaker closes again")
            _fill(tier, 3)
            assert _get(tier, 2)


def test_restores_at_once_while_the_server_comes_and_goes_are_right_or_misses() -> None:
    ended = threading.Event()
    with redis_server() as server, _patient(server) as writer, _machine(server) as tier:
        _fill(writer)
        _ask(tier)
        came: list[bool] = []

        def read() -> None:
            while not ended.is_set():
                for number in range(1, PAGES + 1):
                    if tier.info(STORY.id(number)) is None:
                        tier._known.forget(STORY.id(number))
                _ask(tier)
                came.extend(_restore(tier))

        with ThreadPoolExecutor(3) as pool:
            reading = [pool.submit(read) for _ in range(3)]
            for _ in range(4):
                seen = len(came)
                eventually(lambda seen=seen: _more(came, seen), "pages are asked for")
                server.process.suspend()
                time.sleep(0.05)
                server.process.resume()
                eventually(lambda: _answers(tier), "the breaker closes again")
            ended.set()
            for one in reading:
                one.result(GENEROUS)
        assert True in came
        assert tier.usage().bad_pages == 0


def _more(came: list[bool], seen: int) -> None:
    if len(came) <= seen:
        raise NotYet("nothing came")


def test_a_page_in_parts_of_which_one_was_evicted_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with redis_server() as server, _patient(server) as writer, _patient(server) as tier:
        page = STORY.page(1, nbytes=10 << 20)
        assert writer.write(page) == "written"
        assert _ask(tier, 1).news
        parts = [key for key in server.ask("KEYS", "*") if b"#" in bytes(key)]
        assert parts
        server.ask("DEL", parts[0])
        with pytest.raises(PageUnreadable, match=reasons.LOST), tier.reading(page.meta.id):
            pass
        assert tier.info(page.meta.id) is None
