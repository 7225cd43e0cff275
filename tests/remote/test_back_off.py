"""A store that fails is left alone, and one call at a time finds out when it answers again."""

import threading
from contextlib import suppress

from kit.storage import SetTime
from omlx_cache_storage import breaker
from omlx_cache_storage.breaker import FAILURES
from omlx_cache_storage.remote.engine import BackOff, RemoteError


def _refused(back_off: BackOff) -> bool:
    with suppress(RemoteError):
        back_off.enter()
        return False
    return True


def test_only_failures_in_a_row_open_it(time: SetTime) -> None:
    back_off = BackOff()
    for _ in range(5):
        for _ in range(FAILURES - 1):
            back_off.failed("bad luck")
        back_off.succeeded()
    assert back_off.why == ""


def test_one_call_at_a_time_finds_out_whether_it_answers_again(time: SetTime) -> None:
    changes: list[str] = []
    back_off = BackOff(changes.append)
    back_off.failed("gone", stalled=True)
    time.pass_by(breaker.FIRST_SECONDS)
    assert (back_off.why, back_off.trouble) == ("", "gone")
    assert not _refused(back_off)
    # A try that found out nothing is the next one's.
    back_off.left()
    assert not _refused(back_off)
    others: list[bool] = []
    other = threading.Thread(target=lambda: others.append(_refused(back_off)))
    other.start()
    other.join(60)
    assert others == [True]
    assert back_off.why == "gone"
    back_off.succeeded(read=True)
    assert not _refused(back_off)
    assert (changes, back_off.trouble) == (["gone", ""], "")
