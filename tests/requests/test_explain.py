"""The reason, from what a look-up met and what is known: every case by itself, and its words."""

from dataclasses import replace
from typing import Any

import pytest

from omlx_cache import reasons
from omlx_cache.requests.explain import Known, Met, explain
from omlx_cache.requests.explanation import Elsewhere, Explanation
from omlx_cache.requests.history import Nearest
from omlx_cache.requests.words import brief, sentence
from omlx_cache_storage.departures import Departure
from omlx_cache_storage.keys import as_tokens

PROMPT = as_tokens(list(range(1000)))
MISSED = Met(tokens=1000, restored=512, matched=512, block_size=256, reason="absent")
NO_POINT = MISSED._replace(matched=768, reason="no_restore_point", points=True)
FRESH = MISSED._replace(restored=0, matched=0)
NEAR = Nearest(
    number=7,
    asked_at=0.0,
    shared=600,
    length=900,
    stored=900,
    skipped="",
    alike=False,
    opening=None,
    tokens=as_tokens([*range(600), *range(5000, 5300)]),
)
CONTINUED = NEAR._replace(length=600, tokens=NEAR.tokens[:600])
GONE = Departure("disk", 1e9)
CODEC = Elsewhere(False, {"codec": ("dense", "affine8")}, "m")
MODEL = Elsewhere(True, {"model": ("a", "b")}, "m")


@pytest.mark.parametrize(
    ("met", "known", "reason", "detail"),
    [
        (MISSED._replace(reason=None), Known(NEAR), None, ""),
        (MISSED, Known(), "new_text", ""),
        (MISSED, Known(remembers=False), "absent", ""),
        (MISSED, Known(NEAR), "diverged", ""),
        (MISSED, Known(CONTINUED), "new_text", ""),
        (MISSED, Known(NEAR._replace(opening=0)), "rewritten", ""),
        (MISSED, Known(NEAR, departure=GONE), "evicted", ""),
        (MISSED, Known(NEAR, deeper=True), "evicted", ""),
        (MISSED, Known(NEAR._replace(shared=800)), "not_stored", ""),
        (MISSED, Known(NEAR._replace(shared=800, skipped="no_room")), "not_stored", "no_room"),
        (MISSED, Known(NEAR._replace(shared=800), forgetful=True), "evicted", ""),
        (MISSED, Known(NEAR._replace(shared=800, stored=0), forgetful=True), "not_stored", ""),
        (FRESH, Known(elsewhere=CODEC), "settings_changed", ""),
        (FRESH, Known(elsewhere=MODEL), "model_changed", ""),
        (MISSED, Known(elsewhere=MODEL), "new_text", ""),
        (FRESH, Known(NEAR._replace(shared=14, alike=True), elsewhere=CODEC), "diverged", ""),
        (FRESH, Known(NEAR._replace(shared=14)), "new_text", ""),
        (NO_POINT, Known(NEAR), "snapshot_missing", ""),
        (NO_POINT._replace(lacking="window"), Known(NEAR), "window_not_held", ""),
        (NO_POINT, Known(NEAR, departure=GONE), "evicted", "snapshot_missing"),
        (NO_POINT, Known(NEAR._replace(opening=3)), "rewritten", "snapshot_missing"),
        (NO_POINT, Known(CONTINUED), "snapshot_missing", ""),
        (MISSED._replace(reason="corrupt"), Known(NEAR, departure=GONE), "corrupt", ""),
        (MISSED._replace(reason="unsupported:Odd"), Known(), "unsupported", "Odd"),
    ],
)
def test_the_reason_of_each_case(met: Met, known: Known, reason: str | None, detail: str) -> None:
    told = explain(met, known, PROMPT)
    assert (told.reason, told.detail) == (reason, detail)
    assert told.is_miss is (reason not in (None, "new_text"))


def test_the_excerpts_lie_around_the_place() -> None:
    told = explain(MISSED, Known(NEAR), PROMPT)
    assert told.here[told.before] == 600
    assert told.there[told.before] == 5000
    assert told.here[: told.before] == told.there[: told.before]


@pytest.mark.parametrize("reason", ["corrupt", "evicted", "deadline"])
def test_an_earlier_prompt_is_not_named_where_it_is_not_to_blame(reason: str) -> None:
    known = Known(NEAR, departure=GONE if reason == "evicted" else None)
    met = MISSED if reason == "evicted" else MISSED._replace(reason=reason)
    told = explain(met, known, PROMPT)
    assert (told.reason, told.other, told.here) == (reason, None, ())


RESTORES = sorted(
    {value for name, value in vars(reasons).items() if name.isupper()}
    - {"layout_changed", "position", "no_room", "not_held", "snapshot_budget", "closed"}
    - {"no_restore_point"}
)


@pytest.mark.parametrize("reason", RESTORES)
def test_every_reason_has_words(reason: str) -> None:
    told = explain(MISSED, Known(NEAR), PROMPT)
    shown = sentence(replace(told, reason=reason).to_dict())
    restored, _, why = shown.partition("; ")
    assert restored == "1,000 tokens: 512 restored"
    assert " " in why


def test_a_log_line_has_counts_and_no_tokens() -> None:
    def said(explanation: Explanation) -> str:
        return brief(explanation.to_dict())

    diverged = explain(MISSED, Known(NEAR), PROMPT)
    assert said(diverged) == " (diverged: parts from request 7 at token 601)"
    continued = explain(MISSED, Known(CONTINUED), PROMPT)
    assert said(continued) == " (new_text: continues request 7)"
    assert said(replace(diverged, reason=None)) == ""
    assert said(explain(MISSED, Known(), PROMPT)) == " (new_text)"


def test_words_survive_what_another_version_may_send() -> None:
    odd: list[Any] = [{}, {"reason": 5}, {"reason": "later", "tokens": "many"}]
    odd += [{"reason": reason} for reason in RESTORES]
    for explanation in odd:
        assert isinstance(sentence(explanation, {}), str)
        assert isinstance(brief(explanation), str)
