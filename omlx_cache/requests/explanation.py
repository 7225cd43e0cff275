"""One request in figures, and why no more of its prompt was restored: as values and in words."""

import time
from dataclasses import dataclass

from omlx_cache import reasons
from omlx_cache.settings.sizes import duration

DELETED = "deleted"
"""The detail of what a person or a program deleted."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request at one moment: counts, times and a reason; no tokens and no text.

    `asked_at` is in seconds since the epoch; `total_seconds` is None while it is in flight. In a
    server both count from the request's arrival, and so do the `held_seconds` of one that is held.

    `restored_tokens` include the `cold_tokens` of the disk and the `remote_tokens` of other
    machines; `prepared_tokens` of them were computed before any request for them. `reason` says why
    no more was restored. It waited `held_seconds` for the blocks that request `waited_for`, if
    known, computed. `computed_tokens` of the prompt were fed in `compute_seconds`. After
    `first_token_seconds` the client got the first token, or the prompt was fed whole.
    """

    number: int
    asked_at: float
    namespace: str
    model: str
    salt: str
    prompt_tokens: int
    restored_tokens: int = 0
    cold_tokens: int = 0
    restore_seconds: float = 0.0
    held_seconds: float = 0.0
    reason: str | None = None
    computed_tokens: int = 0
    compute_seconds: float = 0.0
    generated_tokens: int = 0
    total_seconds: float | None = None
    remote_tokens: int = 0
    first_token_seconds: float | None = None
    waited_for: int | None = None
    prepared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """`reason` is one of `omlx_cache.reasons`, None when nothing was left to restore; `detail` says
    more about it.

    Of `tokens` the first `restored` were restored. `position` tokens are shared with the prompt of
    request `other` (at `other_at`, seconds since the epoch), which has `other_tokens` with its
    answer. `here` and `there` are the tokens around the place where they part, the first `before`
    of them equal; `here_text` and `there_text` are their text, where a decoder is known. `gone_at`
    is when an evicted page left, None for before this process. `str()` has it all in words.
    """

    reason: str | None
    tokens: int
    restored: int
    position: int | None = None
    other: int | None = None
    other_at: float | None = None
    other_tokens: int = 0
    gone_at: float | None = None
    detail: str = ""
    before: int = 0
    here: tuple[int, ...] = ()
    there: tuple[int, ...] = ()
    here_text: str | None = None
    there_text: str | None = None

    @property
    def is_miss(self) -> bool:
        """False when all that is stored of the prompt was restored, and nothing is known to be
        lost."""
        return self.reason not in (None, reasons.NEW_TEXT)

    def __str__(self) -> str:
        return sentence(self)


def sentence(told: Explanation, record: RequestRecord | None = None) -> str:
    count = f"{told.restored:,} of {told.tokens:,} tokens"
    if record is None:
        return " ".join(filter(None, (f"{count} restored.", why(told))))
    gave = f" ({_tiers(record)}, {duration(record.restore_seconds)})" if told.restored else ""
    prepared = record.prepared_tokens
    gave += f", {prepared:,} of them prepared while idle" * bool(prepared)
    parts = [f"Request {record.number} restored {count}{gave}.", why(told), _computed(record)]
    if record.held_seconds > 0:
        parts.append(
            f"It waited {duration(record.held_seconds)} for {waited_for(record)}, which computed "
            "the same prefix."
        )
    return " ".join(filter(None, parts))


def brief(told: Explanation) -> str:
    """Return the reason for a log line, in parentheses: nothing of the text."""
    if told.reason is None:
        return ""
    said = ", ".join(filter(None, (_relation(told, ""), told.detail)))
    return f" ({told.reason}: {said})" if said else f" ({told.reason})"


def why(told: Explanation) -> str:
    """Return the reason alone in words, "" when nothing was left to restore."""
    if told.reason is None:
        return ""
    is_new, relation = told.reason == reasons.NEW_TEXT, _relation(told, ",")
    left = None if told.gone_at is None else clock(told.gone_at)
    details = ", ".join(filter(None, (told.detail, left)))
    said = reasons.described(told.reason).sentence + (f" ({details})" if details else "")
    count = told.tokens - told.restored
    text = f"{count:,} {'was' if count == 1 else 'were'} {'new' if is_new else 'not'}: "
    if not relation:
        return f"{text}{said}."
    text += f"it {relation}"
    if told.position not in (told.tokens, told.other_tokens) and (told.there or told.here):
        here = _excerpt(told, told.here_text, told.here)
        text += f", here: {here}, there: {_excerpt(told, told.there_text, told.there)}"
    # An explanation of a prompt that continues or repeats another has said all about new text.
    return f"{text}." if is_new else f"{text}. {said[0].upper()}{said[1:]}."


def waited_for(record: RequestRecord) -> str:
    return f"request {record.waited_for}" if record.waited_for else "another request"


def clock(seconds: float) -> str:
    moment = time.localtime(seconds)
    today = time.localtime()[:3] == moment[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", moment)


def _relation(told: Explanation, form: str) -> str:
    if told.position is None:
        return ""
    if told.position == told.tokens:
        return f"repeats request {told.other}"
    if told.position == told.other_tokens:
        return f"continues request {told.other}"
    return f"differs from request {told.other} at token {told.position + 1:{form}}"


def _excerpt(told: Explanation, text: str | None, tokens: tuple[int, ...]) -> str:
    if text is not None:
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
        return f"`...{shown}`" if shown else "nothing"
    start = max(0, told.before - 4)
    shown = " ".join(map(str, tokens[start : start + 12]))
    return f"tokens {shown} (numbers: no tokenizer is known here)" if shown else "nothing"


def _tiers(record: RequestRecord) -> str:
    cold, remote = record.cold_tokens, record.remote_tokens
    memory = record.restored_tokens - cold - remote
    gave = [(cold, "SSD"), (remote, "other machines"), (memory, "memory")]
    return ", ".join(f"{tokens:,} from {name}" for tokens, name in gave if tokens)


def _computed(record: RequestRecord) -> str:
    under_way = record.total_seconds is None
    # The untimed tokens are so few that the server took no time of them.
    untimed = 0 if under_way else record.prompt_tokens - record.restored_tokens
    took = f" in {duration(record.compute_seconds)}" if record.compute_seconds else ""
    return f"It computed {record.computed_tokens or untimed:,}{took}{' so far' * under_way}."
