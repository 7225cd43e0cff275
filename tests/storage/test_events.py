"""The log of events against a list that forgets nothing, and with readers that wait."""

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from omlx_cache_storage.events import EventLog
from omlx_cache_storage.stats import KINDS


def _log(capacity: int, events: int) -> EventLog:
    log = EventLog(capacity)
    for number in range(events):
        log.note_tier("cleared", "hot", detail=str(number + 1))
    return log


@given(
    capacity=st.integers(1, 9),
    kinds=st.lists(st.sampled_from(KINDS), max_size=40),
    limit=st.integers(1, 12),
    chosen=st.none() | st.sets(st.sampled_from(KINDS)),
)
def test_a_reader_sees_each_event_once_in_order_or_is_told_how_many_it_missed(
    capacity: int, kinds: list[str], limit: int, chosen: set[str] | None
) -> None:
    log, noted, seen, after, missed = EventLog(capacity), list[str](), list[int](), 0, 0
    for kind in kinds:
        log.note_tier(kind, "hot")
        noted.append(kind)
        if len(noted) % 3:
            continue
        page = log.page(after, limit, chosen)
        oldest = max(0, len(noted) - capacity)
        assert page.dropped == max(0, oldest - after)
        missed += page.dropped
        for event in page.events:
            assert noted[event.number - 1] == event.kind
            assert chosen is None or event.kind in chosen
        seen += [event.number for event in page.events]
        after = page.upto
    while (page := log.page(after, limit, chosen)).upto > after:
        seen, after, missed = (
            seen + [event.number for event in page.events],
            page.upto,
            missed + page.dropped,
        )
    assert after == len(noted)
    assert seen == sorted(set(seen))
    wanted = [at + 1 for at, kind in enumerate(noted) if chosen is None or kind in chosen]
    assert set(seen) <= set(wanted)
    assert len(wanted) - missed <= len(seen) <= len(wanted)
    if not missed:
        assert seen == wanted
    assert sum(log.counts().values()) == len(noted)


def test_without_a_number_the_latest_events_are_given_and_none_is_called_dropped() -> None:
    page = _log(capacity=4, events=10).page(None, 3)
    assert [event.number for event in page.events] == [8, 9, 10]
    assert (page.upto, page.dropped) == (10, 0)


def test_a_number_that_was_never_reached_is_of_another_log_and_gets_all_that_is_known() -> None:
    page = _log(capacity=4, events=2).page(500, 10)
    assert [event.number for event in page.events] == [1, 2]


def test_a_reader_that_waits_is_woken_by_the_next_event() -> None:
    log, woken = _log(4, 1), list[bool]()
    reader = threading.Thread(target=lambda: woken.append(log.wait(1, 30)))
    reader.start()
    time.sleep(0.05)
    log.note_tier("cleared", "cold")
    reader.join(30)
    assert woken == [True]
    assert log.wait(2, 0.0) is False
    assert log.wait(0, 0.0) is True
