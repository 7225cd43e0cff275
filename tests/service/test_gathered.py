"""Events of several processes as one sequence."""

from omlx_cache_daemon.service.gathered import Gathered


def _reply(first: int, upto: int, began: float = 1.0, **more: object) -> dict[str, object]:
    events = [{"number": n, "kind": "stored", "detail": ""} for n in range(first, upto + 1)]
    return {"events": events, "upto": upto, "dropped": 0, "began": began, **more}


def _numbers(gathered: Gathered, after: int | None = None, limit: int = 100) -> list[object]:
    found = gathered.document(after, limit)["events"]
    assert isinstance(found, list)
    return [event["number"] for event in found]


def test_each_event_comes_once_with_a_number_of_its_own_and_its_process() -> None:
    gathered = Gathered()
    gathered.add("a", 10, _reply(1, 3))
    gathered.add("b", 20, _reply(1, 2))
    gathered.add("a", 10, _reply(2, 4))
    gathered.add("a", 10, _reply(2, 4))
    assert _numbers(gathered) == [1, 2, 3, 4, 5, 6]
    events = gathered.document(None, 100)["events"]
    assert isinstance(events, list)
    assert [event["pid"] for event in events] == [10, 10, 10, 20, 20, 10]
    assert gathered.cursors() == {"a": 4, "b": 2}
    assert _numbers(gathered, after=4) == [5, 6]
    assert gathered.document(4, 1)["upto"] == 5
    assert gathered.document(6, 1)["upto"] == 6


def test_a_process_that_began_anew_is_heard_from_its_first_event() -> None:
    gathered = Gathered()
    gathered.add("a", 10, _reply(1, 5))
    gathered.add("a", 10, _reply(6, 5, began=2.0))
    assert gathered.cursors() == {}
    gathered.add("a", 10, _reply(1, 2, began=2.0))
    assert len(_numbers(gathered)) == 7


def test_what_others_tell_themselves_is_told_once() -> None:
    gathered = Gathered()
    other = {"number": 1, "kind": "stored", "detail": "other process"}
    gathered.add("a", 10, {"events": [other], "upto": 1, "dropped": 0, "began": 1.0})
    assert _numbers(gathered) == []


def test_what_was_forgotten_is_counted() -> None:
    gathered = Gathered(most=4)
    gathered.add("a", 10, _reply(1, 3, dropped=5))
    gathered.add("a", 10, _reply(4, 6, dropped=2))
    document = gathered.document(0, 100)
    assert document["dropped"] == 2 + 2
    assert _numbers(gathered, after=0) == [3, 4, 5, 6]


def test_of_a_process_that_has_ended_its_events_stay_and_no_more() -> None:
    gathered = Gathered()
    gathered.add("a", 10, _reply(1, 3))
    gathered.add("b", 20, _reply(1, 2))
    gathered.keep({"b"})
    assert gathered.cursors() == {"b": 2}
    assert len(_numbers(gathered)) == 5
