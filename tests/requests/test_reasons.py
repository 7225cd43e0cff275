"""Every reason for which no more is restored, provoked: what `why` says of it."""

from typing import Any

import pytest

from kit import zoo
from kit.drive import decode, prefill, random_tokens
from kit.restoring import HYBRID, WINDOWED
from kit.sessions import Opener
from kit.storage import flip
from omlx_cache import BlockStore, PrefixCache, StridePolicy
from omlx_cache.requests.explanation import Explanation
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.format.names import parse_name
from omlx_cache_storage.page import PageId

HEAD = random_tokens(20, 1)
BODY = random_tokens(400, 2)
OPENING = [7, 8, 9]
"""How each prompt ends that asks for an answer: role and reasoning tag."""


@pytest.fixture
def model() -> Any:
    return zoo.build("qwen3")


def ask(
    cache: PrefixCache, model: Any, tokens: list[int], new: int = 0, **options: Any
) -> tuple[Explanation, list[int]]:
    """A request that is stored: why no more of it was restored, and its answer."""
    with cache.session(tokens, **options) as session:
        turn = prefill(model, session, 64)
        decode(model, session, turn, new)
        session.commit()
        assert session.explanation.restored == session.cached_tokens
        return session.explanation, turn.answer


def asked(model: Any, store: BlockStore) -> PrefixCache:
    """A cache after a request for `BODY`, which the disk has too."""
    cache = PrefixCache(model, store)
    ask(cache, model, BODY)
    assert store.flush(30)
    return cache


def test_a_hit_of_all_that_was_ever_stored_is_no_miss(cache: PrefixCache, model: Any) -> None:
    _, answer = ask(cache, model, BODY, new=10)
    told, _ = ask(cache, model, BODY + answer + random_tokens(50, 5))
    assert (told.reason, told.restored, told.other) == ("new_text", 410, 1)
    told, _ = ask(cache, model, BODY)
    assert (told.reason, told.restored) == (None, 399)
    assert cache.store.stats().requests.misses == {}


def test_a_changed_line_is_told_with_the_place_and_the_other_request(
    cache: PrefixCache, model: Any
) -> None:
    ask(cache, model, [*HEAD, 50, 51, *BODY])
    told, _ = ask(cache, model, [*HEAD, 50, 52, *BODY])
    assert (told.reason, told.position, told.other) == ("diverged", 21, 1)
    assert told.there[told.before] == 51
    assert told.here[told.before] == 52
    assert told.here[: told.before] == told.there[: told.before] == (*HEAD, 50)
    assert told.is_miss
    assert cache.store.stats().requests.misses == {"diverged": 1}


def test_prompts_are_never_compared_across_salts(cache: PrefixCache, model: Any) -> None:
    ask(cache, model, [*HEAD, 50, *BODY], salt="one")
    for salt in ("two", None, b"one"):
        told, _ = ask(cache, model, [*HEAD, 51, *BODY], salt=salt)
        assert (told.reason, told.other, told.there) == ("new_text", None, ())
    told, _ = ask(cache, model, [*HEAD, 50, *BODY], extra={"tenant": "two"})
    assert (told.reason, told.other) == ("new_text", None)


def test_an_answer_that_comes_back_changed_is_a_rewritten_history(
    cache: PrefixCache, model: Any
) -> None:
    prompt = BODY + OPENING
    _, answer = ask(cache, model, prompt, new=60)
    told, _ = ask(cache, model, prompt + answer[:20] + random_tokens(40, 6) + OPENING)
    assert (told.reason, told.position, told.other) == ("rewritten", len(prompt) + 20, 1)


def test_what_memory_evicted_is_told_with_the_time(open_store: Opener, model: Any) -> None:
    cache = asked(model, open_store(hot_cache_only=True, hot_bytes="512KiB"))
    ask(cache, model, random_tokens(2000, 9))
    told, _ = ask(cache, model, BODY)
    assert (told.reason, told.detail) == ("evicted", "from memory")
    assert "is gone (from memory, " in str(told)
    assert told.gone_at is not None
    assert cache.store.requests.latest()[1].record.asked_at <= told.gone_at


def test_what_was_not_written_since_the_writes_of_a_day_are_spent_is_told(
    open_store: Opener, model: Any
) -> None:
    cache = PrefixCache(model, open_store(hot_bytes="512KiB", daily_write_bytes="64KiB"))
    for tokens in (random_tokens(600, 8), BODY, random_tokens(2000, 9)):
        ask(cache, model, tokens)
        cache.store.flush(30)
    told, _ = ask(cache, model, BODY)
    assert (told.reason, told.detail) == ("no_disk", "rationed")


def test_what_the_disk_evicted_is_told(open_store: Opener, model: Any) -> None:
    cache = asked(model, open_store(hot_bytes=0, queue_bytes="4MiB", cold_bytes="1MiB"))
    for seed in range(3):
        ask(cache, model, random_tokens(600, 20 + seed))
        cache.store.flush(30)
    told, _ = ask(cache, model, BODY)
    assert (told.reason, told.detail) == ("evicted", "from the disk")


def test_what_is_evicted_while_it_is_read_is_no_alarm(
    open_store: Opener,
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = asked(model, open_store(hot_bytes=0, queue_bytes="4MiB"))
    cold = cache.store.cold

    def evicted_first(page: PageId) -> Any:
        cold.evictor.evict([page])
        return ColdTier.reading(cold, page)

    monkeypatch.setattr(cold, "reading", evicted_first)
    told, _ = ask(cache, model, BODY)
    assert (told.reason, told.detail) == ("evicted", "from the disk")
    assert not caplog.records


def test_a_file_that_others_may_change_is_said_to_be_that(
    open_store: Opener, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cache = asked(model, open_store(hot_bytes=0, queue_bytes="4MiB"))
    for entry in cache.store.cold.listing():
        entry.path.chmod(0o666)
    told, _ = ask(cache, model, BODY)
    assert told.reason == "unreadable"
    assert "not a regular file of this user's" in caplog.text


def test_what_was_deleted_is_told(store: BlockStore, model: Any) -> None:
    cache = asked(model, store)
    cache.clear()
    told, _ = ask(cache, model, BODY)
    assert (told.reason, told.detail) == ("evicted", "deleted")


def test_what_was_deleted_leaves_no_tokens_of_its_prompts(cache: PrefixCache, model: Any) -> None:
    ask(cache, model, [*HEAD, 50, *BODY], salt="one")
    ask(cache, model, [*HEAD, 51, *BODY], salt="one")
    ask(cache, model, BODY, salt="two")
    log = cache.store.requests
    assert log.latest()[1].explanation.there
    cache.clear(salt="one")
    for asked in log.latest():
        assert (asked.explanation.here, asked.explanation.there) == ((), ())
    assert log.explainer.nbytes == 4 * len(BODY)


def test_what_left_before_this_start_is_told_by_what_lies_behind_it(
    open_store: Opener, model: Any
) -> None:
    store = asked(model, open_store()).store
    assert store.close()
    for path in store.settings.cold_dir.rglob("*.safetensors"):
        name = parse_name(path.name)
        if name is not None and name.position == 64:
            path.unlink()
    told, _ = ask(PrefixCache(model, open_store()), model, BODY)
    assert (told.reason, told.restored, told.gone_at) == ("evicted", 32, None)
    assert "before this start" in str(told)


def test_a_prompt_that_is_under_way_elsewhere_is_not_stored_yet(
    cache: PrefixCache, model: Any
) -> None:
    with cache.session(BODY) as first, cache.session(BODY) as second:
        assert first.explanation is not None
        assert (second.explanation.reason, second.explanation.other) == ("not_stored", 1)
        assert second.explanation.detail == "still being computed"
        assert "it repeats request 1. " in str(second.explanation)
    with cache.session(BODY) as third:
        assert str(third.explanation).endswith("(it was cut off).")


def test_what_had_no_room_is_told_as_such(open_store: Opener, model: Any) -> None:
    cache = asked(model, open_store(hot_cache_only=True, hot_bytes="32KiB"))
    told, _ = ask(cache, model, BODY)
    assert (told.reason, told.detail) == ("not_stored", "no_room")


@pytest.mark.parametrize(
    ("family", "reason"), [(HYBRID, "snapshot_missing"), (WINDOWED, "window_not_held")]
)
def test_a_snapshot_that_was_never_taken_and_a_window_that_had_moved_on_are_told(
    open_store: Opener, family: str, reason: str
) -> None:
    model = zoo.build(family)
    cache = PrefixCache(model, open_store(), policy=StridePolicy(10_000))
    ask(cache, model, BODY)
    told, _ = ask(cache, model, BODY[:200] + random_tokens(60, 5))
    assert (told.reason, told.position) == (reason, 200)
    assert family != HYBRID or told.restored == 0


def test_a_damaged_page_is_told_and_later_why_it_is_gone(open_store: Opener, model: Any) -> None:
    store = asked(model, open_store()).store
    assert store.close()
    for path in store.settings.cold_dir.rglob("*.safetensors"):
        flip(path)
    cache = PrefixCache(model, open_store())
    told = request_without_commit(cache)
    assert told.reason == "corrupt"
    told = request_without_commit(cache)
    assert (told.reason, told.detail) == ("evicted", "damaged")


def request_without_commit(cache: PrefixCache) -> Explanation:
    with cache.session(BODY) as session:
        assert session.explanation is not None
        return session.explanation


def test_without_a_history_nothing_is_kept_and_that_is_said(open_store: Opener, model: Any) -> None:
    store = open_store(status="off")
    cache = PrefixCache(model, store)
    ask(cache, model, [*HEAD, 50, *BODY])
    told, _ = ask(cache, model, [*HEAD, 51, *BODY])
    assert (told.reason, told.other, told.here) == ("absent", None, ())
    assert "cannot be told" in str(told)
    assert store.requests.explainer.nbytes == 0


def test_a_lookup_explains_without_being_remembered(cache: PrefixCache, model: Any) -> None:
    ask(cache, model, [*HEAD, 50, *BODY])
    for _ in range(2):
        found = cache.lookup([*HEAD, 51, *BODY])
        assert (found.explanation.reason, found.explanation.other) == ("diverged", 1)
    assert len(cache.store.requests.records()) == 1


def test_a_store_may_be_given_what_turns_tokens_into_text(cache: PrefixCache, model: Any) -> None:
    ask(cache, model, [*HEAD, 50, *BODY])
    ask(cache, model, [*HEAD, 51, *BODY])
    store = cache.store
    (plain,) = store.why().requests
    assert "here: tokens " in plain.words
    store.decoder = lambda tokens, model: "".join(f"<{token}>" for token in tokens)
    (plain,) = store.why().requests
    assert plain.explanation is not None
    assert "<51>" in str(plain.explanation.here_text)
    assert "<50>" in str(plain.explanation.there_text)
    store.decoder = lambda tokens, model: 1 / 0
    (plain,) = store.why().requests
    assert plain.explanation is not None
    assert plain.explanation.here_text is None
