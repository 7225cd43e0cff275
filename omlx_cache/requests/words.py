"""A request's explanation in words. Takes plain values, which may come from another process."""

import time
from collections.abc import Mapping

Plain = Mapping[str, object]

ADVICE = {
    "diverged": "keep what changes (a date, an id) at the end of the prompt, not at its head",
    "rewritten": "only what comes before the last answer can match; see docs/why.md",
    "evicted": "a larger hot_bytes or cold_bytes keeps more; `omlx-cache stats` shows both",
    "not_stored": "ask again when the first request is done, or see `skips` in `omlx-cache stats`",
    "model_changed": "nothing: the cache of one model is of no use to another",
    "settings_changed": "put the setting back, or delete the old pages: `omlx-cache prune`",
    "window_not_held": "a smaller snapshot_stride keeps more restore points",
    "snapshot_missing": "a smaller snapshot_stride keeps more restore points",
    "corrupt": "the page was forgotten; check the disk if it happens again",
    "unreadable": "check the disk: `omlx-cache stats` shows the cold tier's state",
    "deadline": "allow more: restore_wait_seconds, or deadline= of the session",
    "absent": "set prompt_history_bytes to have prompts compared",
}
"""What a person can do about a reason, where that is anything."""

_PLAIN_REASONS = {
    "too_short": "a prompt of one token has nothing to restore",
    "corrupt": "a page on the disk was damaged, and is forgotten",
    "mismatch": "a page did not fit the model, and is forgotten",
    "unreadable": "the disk did not give a page",
    "undecodable": "a page is there that this version cannot decode",
    "deadline": "the disk had not delivered more by the time that the request could wait",
    "unsupported": "no adapter reads a cache class of this model",
    "bad_tokens": "the prompt is no flat list of integers",
    "store_closed": "the store was closed",
    "error": "something unexpected happened; the log has it",
    "absent": "the next block is not there; whether it ever was cannot be told, because no prompts "
    "are remembered",
}
_LEFT = {
    "memory": "was evicted from memory, which the disk had no copy of",
    "disk": "was evicted from the disk",
    "removed": "was deleted",
    "damaged": "was damaged, and dropped",
}


def sentence(explanation: Plain, request: Plain | None = None) -> str:
    """Return what happened to a prompt in one line.

    `explanation` is `Explanation.to_dict()`, with `here_text` and `there_text` where somebody
    decoded the tokens; `request` a request's record.
    """
    parts = [_restored(explanation, request), why(explanation)]
    if request is not None:
        parts.append(_computed(request))
    return "; ".join(part for part in parts if part)


def brief(explanation: Plain) -> str:
    """Return the reason for a log line, in parentheses: words and counts, nothing of the text."""
    reason, other = explanation.get("reason"), explanation.get("other")
    if reason is None:
        return ""
    if other is None:
        return f" ({reason})"
    position = explanation.get("position")
    if _continues(explanation):
        return f" ({reason}: continues request {other})"
    return f" ({reason}: parts from request {other} at token {_at(position)})"


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
    at, excerpt = number(_at(line.get("position"))), line.get("text")
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
        hot = restored - cold
        where = "SSD" if not hot else "memory" if not cold else f"{number(cold)} of them from SSD"
        text += f" ({where}, {_seconds(request.get('restore_seconds'))})"
    if explanation.get("restore_points") and restored:
        text += f", to the restore point at token {number(restored)}"
    return text


def _computed(request: Plain) -> str:
    computed, held = request.get("computed_tokens"), request.get("held_seconds")
    under_way = request.get("total_seconds") is None
    tokens, restored = request.get("prompt_tokens"), request.get("restored_tokens")
    if computed:
        text = f"{number(computed)} computed, {_seconds(request.get('compute_seconds'))}"
    elif isinstance(tokens, int) and isinstance(restored, int) and not under_way:
        # Of so few that nobody took their time.
        text = f"{number(tokens - restored)} computed"
    else:
        text = "0 computed"
    if under_way:
        text += " so far"
    if isinstance(held, int | float) and held > 0:
        text += f", after {_seconds(held)} of waiting for another request's"
    return text


def _seconds(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "?"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _other(explanation: Plain) -> str:
    at, other = explanation.get("other_at"), explanation.get("other")
    return f"the prompt of {clock(at)} (request {other})"


def _parting(explanation: Plain) -> str:
    at = number(_at(explanation.get("position")))
    there, here = _excerpt(explanation, "there"), _excerpt(explanation, "here")
    return f"at token {at}: {there} there, {here} here"


def _at(position: object) -> int | None:
    """Return a token's number as people count."""
    return position + 1 if isinstance(position, int) else None


def _continues(explanation: Plain) -> bool:
    """True for a prompt that has all of the other one and its answer."""
    return explanation.get("position") == explanation.get("other_tokens")


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
    if explanation.get("other") is not None and explanation.get("restored"):
        return f"the rest is new, it continues {_other(explanation)}"
    if explanation.get("restored"):
        return "the rest is new: no prompt that is remembered had it"
    return "all of it is new: no prompt that is remembered had it"


def _diverged(explanation: Plain) -> str:
    alike = "; the text behind is the same" if explanation.get("alike") else ""
    return f"parts from {_other(explanation)} {_parting(explanation)}{alike}"


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
    return f"{what} {how} at {clock(explanation.get('gone_at'))}"


def _not_stored(explanation: Plain) -> str:
    detail = explanation.get("detail")
    why_not = f" ({detail})" if detail else ": it is under way, or was cut off"
    position = explanation.get("position")
    return f"{_other(explanation)} has the first {number(position)} tokens too, not stored{why_not}"


def _changed(explanation: Plain) -> str:
    changed = explanation.get("changed")
    pairs = changed.items() if isinstance(changed, Mapping) else ()
    fields = ", ".join(f"{name} was {old!r}, is {new!r}" for name, (old, new) in pairs)
    model = explanation.get("stored_model")
    if explanation.get("reason") == "model_changed":
        return f"stored for the model {model or 'before'}, not for this one ({fields})"
    return f"stored under other settings: {fields}"


def _no_point(explanation: Plain) -> str:
    window = explanation.get("reason") == "window_not_held"
    what = "its last window of tokens is not" if window else "no snapshot of the state was kept"
    text = f"more of it is known, but {what} held there" if window else f"more is known, but {what}"
    if explanation.get("other") is None:
        return text
    if _continues(explanation):
        return f"{text}; it continues {_other(explanation)}"
    return f"{text}; parts from {_other(explanation)} {_parting(explanation)}"
