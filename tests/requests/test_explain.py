"""The reason, from what a look-up met and what is known: every case by itself, and its words."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from omlx_cache import reasons
from omlx_cache.reasons import MISS_REASONS
from omlx_cache.requests.explainer import Explainer, Walked
from omlx_cache.requests.explanation import Explanation, brief, sentence
from omlx_cache_storage.events import Departures, How
from omlx_cache_storage.keys import BlockKey, KeyChain, as_tokens
from omlx_cache_storage.page import PAGED, PageId, PageInfo

NAMESPACE = BlockKey(b"a" * 32)
PROMPT = list(range(1000))
BLOCK = 256
OTHER = range(5000, 5300)
MOVED = [*range(600), 9999, *range(601, 900)]


class TierContents:
    """What an explainer asks: the tiers have the pages of `here` ends; `gone` ends have left."""

    def __init__(self, here: tuple[int, ...] = (), most: int = 100) -> None:
        self.explainer = Explainer(2**20, self)
        self.cold = SimpleNamespace(trouble="", room="ok")
        self.departures = Departures(most)
        self.chain = KeyChain(NAMESPACE, as_tokens(PROMPT), BLOCK)
        self._here = {PageId(self.chain.key(end), PAGED) for end in here}

    def find_all(self, pages: list[PageId]) -> list[PageInfo | None]:
        return [PageInfo(0, BLOCK, BLOCK, "hot") if p in self._here else None for p in pages]

    def ask(self, tokens: list[int], answer: int = 0, stored: bool = True, skip: str = "") -> None:
        """An earlier request 7, whose answer has so many tokens."""
        self.explainer.ask(7, NAMESPACE, as_tokens(tokens[: len(tokens) - answer]))
        if stored or skip:
            skipped = {skip: 1} if skip else {}
            self.explainer.store(NAMESPACE, as_tokens(tokens), len(tokens), skipped)

    def leave(self, end: int, group: str = PAGED, how: How = "disk") -> None:
        self.departures.note([PageId(self.chain.key(end), group)], how)

    def explain(
        self,
        reason: str | None = "absent",
        restored: int = 512,
        tokens: int = 1000,
        lacking: str = "",
    ) -> Explanation:
        groups = (PAGED, lacking) if lacking else (PAGED,)
        walked = Walked(self.chain, groups, max(restored, 768 * bool(lacking)), lacking)
        return self.explainer.explain(walked, tokens, restored, reason)


@pytest.fixture
def known() -> TierContents:
    return TierContents()


@pytest.mark.parametrize(("stored", "reason"), [(True, "evicted"), (False, "not_stored")])
def test_what_was_stored_and_is_forgotten_left_a_while_ago(stored: bool, reason: str) -> None:
    known = TierContents(most=2)
    known.ask([*PROMPT[:800], *OTHER], stored=stored)
    for end in range(1, 4):
        known.leave(end)
    assert known.explain().reason == reason


@pytest.mark.parametrize(
    ("how", "trouble", "reason"),
    [
        ("memory", "full", "no_disk"),
        ("removed", "unavailable: gone", "no_disk"),
        ("removed", "full", "evicted"),
        ("disk", "full", "evicted"),
    ],
)
def test_a_disk_that_takes_no_page_is_to_blame_for_what_memory_evicted(
    known: TierContents, how: How, trouble: str, reason: str
) -> None:
    known.cold.trouble = "full"
    known.ask([*PROMPT[:800], *OTHER], stored=False)
    assert known.explain().reason == "not_stored"
    known.ask([*PROMPT[:800], *OTHER])
    assert (known.explain().reason, known.explain().detail) == ("no_disk", "full")
    known.cold.trouble = trouble
    known.leave(768, how=how)
    assert known.explain().reason == reason


@pytest.mark.parametrize(
    ("lacking", "reason"), [("state", "snapshot_missing"), ("window", "window_not_held")]
)
def test_a_restore_point_that_is_missing(known: TierContents, lacking: str, reason: str) -> None:
    assert known.explain("no_restore_point", lacking=lacking).reason == reason
    known.ask([*PROMPT[:600], *OTHER])
    told = known.explain("no_restore_point", lacking=lacking)
    assert (told.reason, told.other) == (reason, 7)
    known.leave(768, lacking)
    told = known.explain("no_restore_point", lacking=lacking)
    assert (told.reason, told.detail) == ("evicted", "from the disk")


@pytest.mark.parametrize("answer", [0, 950])
@pytest.mark.parametrize(
    ("met", "lacking", "reason"),
    [("absent", "", "new_text"), ("no_restore_point", "state", "snapshot_missing")],
)
def test_a_prompt_that_parts_before_what_was_restored_is_not_to_blame(
    known: TierContents, answer: int, met: str, lacking: str, reason: str
) -> None:
    known.ask([*PROMPT[:100], 9999, *PROMPT[101:]], answer)
    told = known.explain(met, lacking=lacking)
    assert (told.reason, told.other, told.position) == (reason, None, None)


def test_a_restore_point_that_a_template_costs_is_rewritten(known: TierContents) -> None:
    known.ask([*PROMPT[:600], *OTHER], answer=320)
    assert known.explain("no_restore_point", lacking="state").reason == "rewritten"


@pytest.mark.parametrize("reason", ["corrupt", "absent", "deadline"])
def test_an_earlier_prompt_is_not_named_where_it_is_not_to_blame(
    known: TierContents, reason: str
) -> None:
    known.ask([*PROMPT[:600], *OTHER])
    known.leave(768)
    told = known.explain(reason)
    assert (told.reason, told.other, told.here) == (
        "evicted" if reason == "absent" else reason,
        None,
        (),
    )


def test_what_raises_leaves_the_word(known: TierContents, caplog: pytest.LogCaptureFixture) -> None:
    known.chain = None
    assert known.explain("absent").reason == "absent"
    assert "not explained" in caplog.text
    caplog.clear()


COMMITS = {"layout_changed", "position", "no_room", "refused", "not_held", "snapshot_budget"}
COMMITS |= {"closed"}
RESTORES = sorted(
    {value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}
    - COMMITS
    - {"no_restore_point"}
)


@pytest.mark.parametrize("reason", RESTORES)
def test_every_reason_has_words(known: TierContents, reason: str) -> None:
    assert MISS_REASONS[reason].sentence
    shown = sentence(replace(known.explain(), reason=reason))
    restored, _, why = shown.partition(". ")
    assert restored == "512 of 1,000 tokens restored"
    assert MISS_REASONS[reason].sentence in why


def test_a_process_does_not_claim_to_know_what_was_stored_before_its_start() -> None:
    told = sentence(Explanation(reasons.NEW_TEXT, 330, 0))
    assert told.endswith("330 were new: not stored now for this model under these settings.")


def test_one_token_was_new() -> None:
    assert " 1 was new: " in sentence(Explanation(reasons.NEW_TEXT, 687, 686))


def test_a_log_line_has_counts_and_no_tokens(known: TierContents) -> None:
    assert brief(known.explain()) == " (new_text)"
    known.ask([*PROMPT[:600], *OTHER])
    assert brief(known.explain()) == " (new_text: differs from request 7 at token 601)"
    known.ask(MOVED)
    assert brief(known.explain()) == " (diverged: differs from request 7 at token 601)"
    known.ask(PROMPT[:700])
    assert brief(known.explain()) == " (new_text: continues request 7)"
    assert brief(known.explain(None)) == ""


@pytest.mark.parametrize("shared", [1, 7])
def test_the_first_tokens_of_a_template_name_no_other_request(
    known: TierContents, shared: int
) -> None:
    known.ask([*PROMPT[:shared], *OTHER])
    told = known.explain(restored=0)
    assert (told.reason, told.other) == ("new_text", None)
    assert brief(told) == " (new_text)"


def test_what_is_wrong_with_tokens_is_not_in_the_log(known: TierContents) -> None:
    told = known.explainer.explain(None, 5, 0, "bad_tokens:got 'a secret'")
    assert (told.reason, brief(told)) == ("bad_tokens", " (bad_tokens)")
