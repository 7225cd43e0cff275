"""Whoever follows the requests of a store sees each of them end once, or learns how many not."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omlx_cache import BlockStore, CacheSettings
from omlx_cache.control.serialization import encoded
from omlx_cache.identity.namespace import NOWHERE
from omlx_cache.requests.log import AskedRequest, RequestLog
from omlx_cache_daemon.errors import NobodyThere
from omlx_cache_daemon.log_follower import Events, Follower, Requests
from omlx_cache_storage.measures import Counters

REMEMBERED = 8


@pytest.fixture(scope="module")
def store() -> Any:
    with BlockStore(CacheSettings(hot_cache_only=True, hot_bytes=0, socket="off")) as store:
        yield store


class Followed:
    """Requests that are followed as `log --follow` does, three at a time."""

    def __init__(self, store: BlockStore) -> None:
        self._follower = Requests(shows_begun=False)
        self.log = RequestLog(Counters(), store.requests.explainer, REMEMBERED)

    def ask(self) -> AskedRequest:
        return self.log.ask(NOWHERE, 10)

    def look(self) -> tuple[list[int], int]:
        """Return the numbers of those that have ended, and how many were missed."""
        return _told(self._follower, self._call)

    def _call(self, op: str, **asked: Any) -> object:
        assert op == "requests"
        return json.loads(encoded(self.log.page(asked["after"], asked.get("open", ()), 3)))


def _told(follower: Follower, call: Callable[..., object]) -> tuple[list[int], int]:
    documents: list[Any] = [row.document for row in follower.news(call, 7)]
    missed = sum(one.get("missed", 0) for one in documents)
    return [one["number"] for one in documents if "number" in one], missed


def test_requests_are_seen_as_they_end_and_not_in_the_order_in_which_they_began(
    store: BlockStore,
) -> None:
    followed = Followed(store)
    before = followed.ask()
    followed.ask().ended(1)
    assert followed.look() == ([2], 0)
    long, short = followed.ask(), followed.ask()
    short.ended(1)
    assert followed.look() == ([4], 0)
    before.ended(1)
    long.ended(1)
    assert followed.look() == ([1, 3], 0)
    assert followed.look() == ([], 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["begin", "end", "look"]), max_size=30), st.randoms())
def test_each_request_is_seen_once_or_counted(
    store: BlockStore, steps: list[str], random: Any
) -> None:
    followed = Followed(store)
    followed.look()
    under_way: list[AskedRequest] = []
    seen: list[tuple[list[int], int]] = []
    for step in steps:
        if step == "begin":
            under_way.append(followed.ask())
        elif step == "look":
            seen.append(followed.look())
        elif under_way:
            under_way.pop(random.randrange(len(under_way))).ended(3)
    for asked in under_way:
        asked.ended(3)
    seen.append(followed.look())
    numbers = [number for each, _ in seen for number in each]
    assert len(numbers) == len(set(numbers))
    assert len(numbers) + sum(missed for _, missed in seen) == steps.count("begin")


@pytest.mark.parametrize(("upto", "began"), [(12, 2.0), (3, None)])
def test_a_log_that_begins_again_is_read_from_its_start(upto: int, began: float | None) -> None:
    first: dict[str, Any] = {"upto": 9, "began": began and 1.0, "events": [{"number": 9}]}
    again = {"upto": upto, "began": began, "events": []}
    answers = [first, again, {**again, "dropped": 4, "events": [{"number": upto}]}, again]
    follower, call, asked = _answered(*answers)
    assert _told(follower, call) == ([9], 0)
    assert _told(follower, call) == ([upto], 4)
    assert asked == [None, 9, 0, upto]


def test_what_a_store_told_before_it_ended_is_seen() -> None:
    follower, call, _ = _answered(
        {"upto": 9, "events": []}, {"upto": 10, "events": [{"number": 10}]}
    )
    assert _told(follower, call) == ([], 0)
    news = follower.news(call, 7)
    assert next(news).document["number"] == 10
    with pytest.raises(NobodyThere):
        next(news)


def _answered(
    *answers: dict[str, Any],
) -> tuple[Events, Callable[..., object], list[object]]:
    """Return a follower of events, a store that answers this and ends, and what was asked of it."""
    left, asked = list(answers), list[object]()

    def call(op: str, **arguments: object) -> object:
        asked.append(arguments.get("after"))
        if not left:
            raise NobodyThere("it has ended")
        return {"pid": 7, **left.pop(0)}

    return Events(limit=1), call, asked
