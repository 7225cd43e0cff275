"""Whoever follows the requests of a store sees each of them end once, or learns how many not."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omlx_cache import BlockStore, CacheSettings
from omlx_cache.requests.log import AskedRequest, RequestLog
from omlx_cache_daemon.following import Followed, Follower
from omlx_cache_storage.stats import Counters

REMEMBERED = 8
LIMIT = 3


@pytest.fixture
def store() -> Iterator[BlockStore]:
    with BlockStore(CacheSettings(hot_cache_only=True, hot_bytes=0, socket="off")) as store:
        yield store


def _log(store: BlockStore, most: int = 512) -> RequestLog:
    return RequestLog(Counters(), store.requests.explainer, most)


def _look(follower: Follower, log: RequestLog) -> list[Followed]:
    """Ask as `monitor` does, with the operation's own page, until nothing more is there."""
    seen = []
    while True:
        question = follower.question()
        after, numbers = question.get("after", -1), question.get("open", [])
        assert isinstance(after, int)
        assert isinstance(numbers, list)
        page = log.page(after, set(numbers), LIMIT)
        records = [record.to_dict() for record in page.records]
        seen.append(follower.take({"upto": page.upto, "records": records}))
        if not seen[-1].more:
            return seen


def _numbers(seen: list[Followed]) -> list[int]:
    return [record.number for followed in seen for record in followed.ended]


def test_requests_are_seen_as_they_end_and_not_in_the_order_in_which_they_began(
    store: BlockStore,
) -> None:
    log, follower = _log(store), Follower()
    before = log.ask("", {}, 10)
    log.ask("", {}, 10).ended(1)
    assert _numbers(_look(follower, log)) == []
    long, short = log.ask("", {}, 10), log.ask("", {}, 10)
    short.ended(1)
    seen = _look(follower, log)
    assert _numbers(seen) == [4]
    assert [r.number for followed in seen for r in followed.begun] == [3]
    before.ended(1)
    assert _numbers(_look(follower, log)) == [1]
    long.ended(1)
    assert _numbers(_look(follower, log)) == [3]
    assert _numbers(_look(follower, log)) == []


def test_what_was_forgotten_meanwhile_is_counted(store: BlockStore) -> None:
    log, follower = _log(store, REMEMBERED), Follower()
    log.ask("", {}, 10)
    _look(follower, log)
    for _ in range(20):
        log.ask("", {}, 10).ended(0)
    seen = _look(follower, log)
    assert sum(followed.unseen for followed in seen) == 1 + 12
    assert _numbers(seen) == list(range(14, 22))


def test_a_new_store_in_the_old_ones_place_is_followed_from_its_first_request(
    store: BlockStore,
) -> None:
    follower = Follower()
    old, new = _log(store), _log(store)
    for _ in range(5):
        old.ask("", {}, 10).ended(0)
    _look(follower, old)
    new.ask("", {}, 10).ended(0)
    assert _numbers(_look(follower, new)) == [1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_each_request_is_seen_once_or_counted(store: BlockStore, data: st.DataObject) -> None:
    log, follower = _log(store, REMEMBERED), Follower()
    under_way: list[AskedRequest] = []
    seen: list[Followed] = []
    total = 0
    _look(follower, log)
    for _ in range(data.draw(st.integers(0, 30))):
        step = data.draw(st.sampled_from(["begin", "end", "look"]))
        if step == "begin":
            under_way.append(log.ask("", {}, 10))
            total += 1
        elif step == "end" and under_way:
            under_way.pop(data.draw(st.integers(0, len(under_way) - 1))).ended(3)
        elif step == "look":
            seen += _look(follower, log)
    for asked in under_way:
        asked.ended(3)
    seen += _look(follower, log)
    numbers = _numbers(seen)
    assert len(numbers) == len(set(numbers))
    assert len(numbers) + sum(followed.unseen for followed in seen) == total
