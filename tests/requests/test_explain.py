"""The reason, from what a look-up met and what is known: every case by itself, and its words."""

from dataclasses import replace
from typing import Any

import pytest

from omlx_cache import reasons
from omlx_cache.requests.advice import advice
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
MOVED = NEAR._replace(alike=True)
GONE = Departure("disk", 1e9)
CODEC = Elsewhere(False, {"codec": ("dense", "affine8")}, "m")
MODEL = Elsewhere(True, {"model": ("a", "b")}, "m")


@pytest.mark.parametrize(
    ("met", "known", "reason", "detail"),
    [
        (MISSED._replace(reason=None), Known(NEAR), None, ""),
        (MISSED, Known(), "new_text", ""),
        (MISSED, Known(remembers=False), "absent", ""),
        (MISSED, Known(NEAR), "new_text", ""),
        (MISSED, Known(MOVED), "diverged", ""),
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
    - {"layout_changed", "position", "no_room", "refused", "not_held", "snapshot_budget", "closed"}
    - {"no_restore_point"}
)


@pytest.mark.parametrize("reason", RESTORES)
def test_every_reason_has_words(reason: str) -> None:
    told = explain(MISSED, Known(NEAR), PROMPT)
    shown = sentence(replace(told, reason=reason).to_dict())
    restored, _, why = shown.partition("; ")
    assert restored == "1,000 tokens: 512 restored"
    assert " " in why


def test_of_digests_that_changed_a_person_is_shown_the_beginning() -> None:
    changed = {"weights": ["a" * 64, "b" * 64], "mlx": ["0.32.0", "0.32.1"]}
    said = sentence({"reason": "model_changed", "stored_model": "first", "changed": changed})
    assert "weights was 'aaaaaaaaaaaaaaaa...', is 'bbbbbbbbbbbbbbbb...'" in said
    assert "mlx was '0.32.0', is '0.32.1'" in said


def test_a_log_line_has_counts_and_no_tokens() -> None:
    def said(explanation: Explanation) -> str:
        return brief(explanation.to_dict())

    diverged = explain(MISSED, Known(MOVED), PROMPT)
    assert said(diverged) == " (diverged: parts from request 7 at token 601)"
    continued = explain(MISSED, Known(CONTINUED), PROMPT)
    assert said(continued) == " (new_text: continues request 7)"
    parted = explain(MISSED, Known(NEAR), PROMPT)
    assert said(parted) == " (new_text: parts from request 7 at token 601)"
    assert said(replace(diverged, reason=None)) == ""
    assert said(explain(MISSED, Known(), PROMPT)) == " (new_text)"


def test_the_log_and_why_say_the_same_of_a_question_after_a_shared_beginning() -> None:
    met = Met(tokens=60, restored=32, matched=32, block_size=32, reason="absent")
    near = NEAR._replace(shared=43, length=70, stored=64, tokens=NEAR.tokens[:70])
    told = explain(met, Known(near), PROMPT[:60]).to_dict()
    assert brief(told) == " (new_text: parts from request 7 at token 44)"
    request = {"prompt_tokens": 60, "restored_tokens": 32, "total_seconds": 1.0}
    said = sentence(told, {**request, "computed_tokens": 28, "compute_seconds": 0.0})
    assert "continues" not in said
    assert "(request 7) at token 44: " in said
    assert "nothing behind it was ever stored" in said
    # A step of decoding took them along: nobody measured how long.
    assert said.endswith("; 28 computed, 11 of them shared, behind the last whole block")
    assert advice(told) == "nothing to do: another question after the same beginning"


@pytest.mark.parametrize("shared", [1, 7])
def test_the_first_tokens_of_a_template_name_no_other_request(shared: int) -> None:
    met = Met(tokens=60, restored=1, matched=1, block_size=32, reason="absent")
    told = explain(met, Known(NEAR._replace(shared=shared)), PROMPT[:60])
    assert (told.reason, told.other) == ("new_text", None)
    assert brief(told.to_dict()) == " (new_text)"
    assert "no prompt that is remembered had it" in sentence(told.to_dict())


@pytest.mark.parametrize(
    ("state", "said"), [("computing", ", still being computed"), ("cut_off", ", which was cut off")]
)
@pytest.mark.parametrize("tokens", [200, 600])
def test_the_same_prompt_again_is_told_with_what_became_of_it(
    state: str, said: str, tokens: int
) -> None:
    """Of less than a block, and of more."""
    met = FRESH._replace(tokens=tokens)
    near = NEAR._replace(shared=tokens, length=tokens, stored=0, tokens=PROMPT[:tokens])
    told = replace(explain(met, Known(near), PROMPT[:tokens]), other_state=state).to_dict()
    assert brief(told).endswith(f": the same prompt as request 7{said})")
    assert sentence(told).endswith(f"(request 7){said}")
    assert "the same prompt as that of " in sentence(told)


def test_advice_fits_the_case() -> None:
    def helps(met: Met, near: Nearest, state: str = "") -> str:
        return advice(replace(explain(met, Known(near), PROMPT), other_state=state).to_dict())

    assert helps(MISSED, MOVED).startswith("keep what changes")
    without = NEAR._replace(shared=800)
    assert helps(MISSED, without, "computing") == "ask again when request 7 is done"
    for setting in ("hot_bytes", "queue_bytes", "cold_bytes", "`skips`"):
        assert setting in helps(MISSED, without._replace(skipped="no_room"), "ended")
    assert "when" not in helps(MISSED, without, "cut_off")
    assert helps(MISSED, CONTINUED) == ""


def test_words_survive_what_another_version_may_send() -> None:
    odd: list[Any] = [{}, {"reason": 5}, {"reason": "later", "tokens": "many"}]
    odd += [{"reason": reason} for reason in RESTORES]
    for explanation in odd:
        assert isinstance(sentence(explanation, {}), str)
        assert isinstance(brief(explanation), str)
        assert isinstance(advice(explanation), str)
