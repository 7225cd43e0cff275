"""What a request does with its own pages is no second use."""

from omlx_cache_storage.eviction.keep import OWN_USE_NS, Keep

NOW = 10**18


def _seen(gap_ns: int) -> int:
    policy = Keep()
    policy.added(NOW)
    policy.moved(NOW, NOW + gap_ns, 1, used=True)
    learned = policy.learned()
    return 0 if learned is None else learned.seen


def test_a_page_that_its_own_request_marks_again_was_not_used_again() -> None:
    assert _seen(OWN_USE_NS - 1) == 0


def test_a_page_that_the_next_request_marks_was_used_again() -> None:
    assert _seen(OWN_USE_NS) == 1
