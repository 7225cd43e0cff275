"""A request's explanation in words. Takes plain values, which may come from another process."""

import re
import time
from collections.abc import Mapping

Plain = Mapping[str, object]

_DIGEST = re.compile(r"[0-9a-f]{32,128}")
_DIGEST_SHOWN = 16

_PLAIN_REASONS = {
    "too_short": "a prompt of one token has nothing to restore",
    "corrupt": "a page on the disk was damaged, and is forgotten",
    "mismatch": "a page did not fit the model, and is forgotten",
    "unreadable": "the disk did not give a page",
    "undecodable": "a page is there that this version cannot decode",
    "deadline": "the disk had not delivered more by the time that the request could wait",
    "slower_than_computing": "the disk has more, and to read that takes longer than to compute it",
    "remote_timeout": "the store that machines share did not answer in the time that a request may "
    "wait for it",
    "remote_unreachable": "nobody answered at the store that machines share, or the connection "
    "broke",
    "remote_denied": "the store that machines share did not let this machine in",
    "remote_throttled": "the store that machines share is asked too much, or is not ready",
    "remote_failed": "the store that machines share could not do what it was asked; the log has it",
    "remote_resting": "the store that machines share failed a moment ago, and is left alone for a "
    "while",
    "remote_lost": "the store that machines share had the page when it was asked, and not any more "
    "when the page was read",
    "remote_foreign": "the store that machines share has pages that another secret vouches for, or "
    "none does",
    "unsupported": "no adapter reads a cache class of this model",
    "bad_tokens": "the prompt is no flat list of integers",
    "store_closed": "the store was closed",
    "error": "something unexpected happened; the log has it",
    "absent": "the next block is not there; whether it ever was cannot be told, because no prompts "
    "are remembered",
}
_LEFT = {
    "memory": "was evicted from memory at {at}, and the disk had no copy",
    "disk": "was evicted from the disk at {at}",
    "removed": "was deleted at {at}",
    "damaged": "was damaged, and dropped at {at}",
}
_STATES = {
    "computing": "still being computed",
    "cut_off": "which was cut off",
}


def sentence(explanation: Plain, request: Plain | None = None) -> str:
    """Return what happened to a prompt in one line.

    `explanation` is `Explanation.to_dict()`, with `here_text` and `there_text` where somebody
    decoded the tokens; `request` a request's record.
    """
    parts = [_restored(explanation, request), why(explanation)]
    if request is not None:
        parts.append(_computed(explanation, request))
    return "; ".join(part for part in parts if part)


def brief(explanation: Plain) -> str:
    """Return the reason for a log line, in parentheses: words and counts, nothing of the text."""
    reason, other = explanation.get("reason"), explanation.get("other")
    if reason is None:
        return ""
    if other is None:
        # An estimate of this process, and nothing of the prompt.
        told = explanation.get("detail") if reason == "slower_than_computing" else ""
        return f" ({reason}: {told})" if told else f" ({reason})"
    said = _relation(explanation, f"request {other}", f"at token {_at(explanation)}")
    if said.startswith(_SAME) and explanation.get("detail"):
        said += f", {explanation['detail']}"
    return f" ({reason}: {said})"


def why(explanation: Plain) -> str:
    """Return the reason alone in words, "" when nothing was left to restore."""
    reason = explanation.get("reason")
    if reason is None:
        return ""
    word = str(reason)
    said = {
        "new_text": _new_text,
        "diverged": _diverged,
        "rewritten": _rewritten,
        "evicted": _evicted,
        "not_stored": _not_stored,
        "model_changed": _changed,
        "settings_changed": _changed,
        "window_not_held": _no_point,
        "snapshot_missing": _no_point,
    }.get(word)
    if said is not None:
        return said(explanation)
    text, detail = _PLAIN_REASONS.get(word, word), explanation.get("detail")
    return f"{text} ({detail})" if detail else text


def changing(line: Plain) -> str:
    """Return in words what a line costs that spoils one prompt after the other."""
    at, excerpt = number(_at(line)), line.get("text")
    place = f": {_shown(excerpt)}" if isinstance(excerpt, str) else ""
    return (
        f"a line that keeps changing: {number(line.get('requests'))} of the last "
        f"{number(line.get('of'))} prompts part from one before at token {at} and go on alike"
        f"{place}; "
        f"cost so far: {number(line.get('tokens'))} computed, {_seconds(line.get('seconds'))}"
    )


def clock(seconds: object) -> str:
    """Return a moment for people: the time, and the date of another day."""
    if not isinstance(seconds, int | float):
        return "an unknown time"
    moment = time.localtime(seconds)
    today = time.localtime()[:3] == moment[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", moment)


def number(count: object) -> str:
    return f"{count:,}" if isinstance(count, int) else "?"


def _restored(explanation: Plain, request: Plain | None) -> str:
    tokens, restored = explanation.get("tokens"), explanation.get("restored")
    text = f"{number(tokens)} tokens: {number(restored)} restored"
    cold = None if request is None else request.get("cold_tokens")
    if request is not None and restored and isinstance(restored, int) and isinstance(cold, int):
        where = _whence(restored, cold, request.get("remote_tokens"))
        text += f" ({where}{_took(request.get('restore_seconds'))})"
    if explanation.get("restore_points") and restored:
        text += f", to the restore point at token {number(restored)}"
    return text


def _whence(restored: int, cold: int, remote: object) -> str:
    """Return in words which tiers gave the tokens."""
    afar = remote if isinstance(remote, int) else 0
    for tokens, name in (
        (cold, "SSD"),
        (afar, "other machines"),
        (restored - cold - afar, "memory"),
    ):
        if tokens == restored:
            return name
    parts = [f"{number(cold)} of them from SSD"] if cold else []
    parts += [f"{number(afar)} {'' if cold else 'of them '}from other machines"] if afar else []
    return ", ".join(parts)


def _computed(explanation: Plain, request: Plain) -> str:
    computed, held = request.get("computed_tokens"), request.get("held_seconds")
    under_way = request.get("total_seconds") is None
    tokens, restored = request.get("prompt_tokens"), request.get("restored_tokens")
    if computed:
        text = f"{number(computed)} computed{_took(request.get('compute_seconds'))}"
    elif isinstance(tokens, int) and isinstance(restored, int) and not under_way:
        # Of so few that nobody took their time.
        text = f"{number(tokens - restored)} computed"
    else:
        text = "0 computed"
    text += " so far" if under_way else _again(explanation)
    if isinstance(held, int | float) and held > 0:
        text += f", after {_seconds(held)} of waiting for another request's"
    return text


def _again(explanation: Plain) -> str:
    """Return what was computed again of a part that is too short for a block."""
    shared, restored = explanation.get("position"), explanation.get("restored")
    whole = explanation.get("reason") in ("new_text", "diverged", "rewritten")
    if not whole or explanation.get("detail"):
        return ""
    if not isinstance(shared, int) or not isinstance(restored, int) or shared <= restored:
        return ""
    where = "behind the last whole block" if restored else "less than a whole block"
    return f", {number(shared - restored)} of them shared, {where}"


def _took(seconds: object) -> str:
    """Return a time behind a count, nothing for what nobody measured."""
    return f", {_seconds(seconds)}" if seconds else ""


def _seconds(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "?"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _other(explanation: Plain) -> str:
    at, other = explanation.get("other_at"), explanation.get("other")
    return f"the prompt of {clock(at)} (request {other})"


_SAME = "the same prompt as"


def _relation(explanation: Plain, other: str, place: str) -> str:
    """Return how a prompt is related to the other one, for the log's line and for `why`."""
    if _is_same(explanation):
        state = _STATES.get(str(explanation.get("other_state")))
        return f"{_SAME} {other}" + (f", {state}" if state else "")
    if _continues(explanation):
        return f"continues {other}"
    return f"parts from {other} {place}"


def _related(explanation: Plain) -> str:
    same = _is_same(explanation)
    at, other = clock(explanation.get("other_at")), explanation.get("other")
    that = f"that of {at} (request {other})" if same else _other(explanation)
    return _relation(explanation, that, _parting(explanation))


def parts(explanation: Plain) -> bool:
    """True for a prompt that shares its beginning with another one, and then parts from it."""
    known = explanation.get("other") is not None
    return known and not _is_same(explanation) and not _continues(explanation)


def _is_same(explanation: Plain) -> bool:
    """True for a prompt that the other one has whole."""
    position = explanation.get("position")
    return isinstance(position, int) and position == explanation.get("tokens")


def _continues(explanation: Plain) -> bool:
    """True for a prompt that has all of the other one and its answer."""
    return explanation.get("position") == explanation.get("other_tokens")


def _parting(explanation: Plain) -> str:
    place = f"at token {number(_at(explanation))}"
    if not any(explanation.get(side) for side in ("there", "here", "there_text", "here_text")):
        return place
    there, here = _excerpt(explanation, "there"), _excerpt(explanation, "here")
    return f"{place}: {there} there, {here} here"


def _at(parted: Plain) -> int | None:
    """Return the first token that differs, as people count."""
    position = parted.get("position")
    return position + 1 if isinstance(position, int) else None


def _excerpt(explanation: Plain, side: str) -> str:
    text, tokens = explanation.get(f"{side}_text"), explanation.get(side)
    if isinstance(text, str):
        return _shown(text)
    if isinstance(tokens, list | tuple) and tokens:
        before = explanation.get("before")
        start = max(0, before - 4) if isinstance(before, int) else 0
        return f"tokens {' '.join(map(str, tokens[start : start + 12]))}"
    return "nothing"


def _shown(text: str) -> str:
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return f"`...{shown}`" if shown else "nothing"


def _new_text(explanation: Plain) -> str:
    if explanation.get("other") is None:
        new = "the rest" if explanation.get("restored") else "all of it"
        return f"{new} is new: no prompt that is remembered had it"
    related = _related(explanation)
    if parts(explanation):
        return f"{related}; nothing behind it was ever stored"
    if _is_same(explanation):
        return related
    if explanation.get("restored"):
        return f"the rest is new, it {related}"
    state = _STATES.get(str(explanation.get("other_state")))
    return f"it {related}" + (f", {state}" if state else "")


def _diverged(explanation: Plain) -> str:
    alike = "; the text behind is the same" if explanation.get("alike") else ""
    return f"{_related(explanation)}{alike}"


def _rewritten(explanation: Plain) -> str:
    return (
        "the template, or the client, rewrote the history: what was answered to "
        f"{_other(explanation)} comes back otherwise {_parting(explanation)}"
    )


def _evicted(explanation: Plain) -> str:
    what = {
        "window_not_held": "the window for this place",
        "snapshot_missing": "the snapshot for this place",
    }.get(str(explanation.get("detail")), "the next block")
    how = _LEFT.get(str(explanation.get("how")))
    if how is None:
        return f"{what} left before this start, or before the record of what was evicted begins"
    return f"{what} {how.format(at=clock(explanation.get('gone_at')))}"


_NO_PLACE = {"refused": "refused: memory was full of pages that were used a short while ago"}


def _not_stored(explanation: Plain) -> str:
    detail, state = explanation.get("detail"), str(explanation.get("other_state"))
    if detail:
        why_not = f", not stored ({_NO_PLACE.get(str(detail), detail)})"
    elif _is_same(explanation) and state in _STATES:
        return _related(explanation)
    else:
        why_not = ", not stored: " + {
            "computing": "it is still being computed",
            "cut_off": "it was cut off",
            "ended": "it ended before it was",
        }.get(state, "it is under way, or was cut off")
    if _is_same(explanation):
        return f"{_related(explanation)}{why_not}"
    shared = number(explanation.get("position"))
    return f"{_other(explanation)} has the first {shared} tokens too{why_not}"


def _changed(explanation: Plain) -> str:
    changed = explanation.get("changed")
    pairs = changed.items() if isinstance(changed, Mapping) else ()
    fields = ", ".join(
        f"{name} was {_shortened(old)!r}, is {_shortened(new)!r}" for name, (old, new) in pairs
    )
    model = explanation.get("stored_model")
    if explanation.get("reason") == "model_changed":
        return f"stored for the model {model or 'before'}, not for this one ({fields})"
    return f"stored under other settings: {fields}"


def _shortened(value: object) -> object:
    """Return a value as people compare it: of a digest the beginning."""
    is_digest = isinstance(value, str) and _DIGEST.fullmatch(value) is not None
    return f"{value[:_DIGEST_SHOWN]}..." if isinstance(value, str) and is_digest else value


def _no_point(explanation: Plain) -> str:
    window = explanation.get("reason") == "window_not_held"
    what = "its last window of tokens is not" if window else "no snapshot of the state was kept"
    text = f"more of it is known, but {what} held there" if window else f"more is known, but {what}"
    return text if explanation.get("other") is None else f"{text}; {_no_point_of(explanation)}"


def _no_point_of(explanation: Plain) -> str:
    continues = _continues(explanation) and not _is_same(explanation)
    return f"{'it ' if continues else ''}{_related(explanation)}"
