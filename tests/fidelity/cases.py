"""The five kinds of restore: how each comes about, and what the live cache would have answered."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kit.drive import FedTurn, decode, digest, feed, prefill, random_tokens, run
from omlx_cache import PrefixCache
from omlx_cache.session import Session

from .damage import Victim, targets

BLOCK = 32
PROMPT = 5 * BLOCK
BRANCH = 100
ANSWER = 20
LONG_ANSWER = 70
"""More than the zoo's window of 64, so that the ring goes round while decoding."""

SUFFIX = random_tokens(8, 101)
FOLLOWING = random_tokens(3, 102)
POSITIONS = (
    "prefill boundary",
    "mid-sequence branch",
    "end of answer",
    "after wrap-around",
    "exact repeat",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt to ask for, how much of it must be restored, and the digest of what must follow.

    `first_visit` is what the same position gave when it was asked for the first time.
    """

    position: str
    tokens: list[int]
    restored: int
    steps: list[list[int]]
    expected: str
    first_visit: int
    targets: list[Victim]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Case":
        found = [Victim(*target) for target in fields["targets"]]
        return cls(**{**fields, "targets": found})


@dataclass(frozen=True, slots=True)
class Continued:
    """What a request restored, and a digest of the logits that followed."""

    restored: int
    reason: str | None
    steps: list[list[int]]
    digest: str


def ask(model: Any, cache: PrefixCache, tokens: Sequence[int]) -> Continued:
    """Restore, feed the rest of the prompt and three fixed tokens; store nothing."""
    with cache.session(tokens) as session:
        # Its caches go on living; what they compute is not stored.
        session.abort()
        turn = prefill(model, session, BLOCK)
        for token in FOLLOWING:
            turn.logits.append(feed(model, session.prompt_cache, [token]))
            turn.steps.append([token])
    return Continued(turn.cached, turn.reason, turn.steps, digest(turn.logits))


def populate(model: Any, cache: PrefixCache) -> list[Case]:
    """Serve the first requests, and measure each kind of hit against the live cache."""
    prompt = random_tokens(PROMPT, 1)
    boundary, first = _served(model, cache, prompt, 0)
    found = [_continued(model, cache, "prefill boundary", boundary, first, SUFFIX)]
    found.append(_branch(model, cache, prompt, first.steps))
    repeat = ask(model, cache, prompt)
    found.append(_replayed(model, cache, "exact repeat", prompt, first.steps, repeat))
    answered = _served(model, cache, random_tokens(PROMPT, 2), ANSWER)
    found.append(_continued(model, cache, "end of answer", *answered, SUFFIX))
    wrapped = _served(model, cache, random_tokens(BRANCH, 3), LONG_ANSWER)
    found.append(_continued(model, cache, "after wrap-around", *wrapped, SUFFIX[:1]))
    return sorted(found, key=lambda case: POSITIONS.index(case.position))


def _served(
    model: Any, cache: PrefixCache, prompt: list[int], answer: int
) -> tuple[Session, FedTurn]:
    """One request, committed; its live cache stays usable."""
    with cache.session(prompt) as session:
        turn = prefill(model, session, BLOCK)
        decode(model, session, turn, answer)
        session.commit()
    return session, turn


def _continued(
    model: Any,
    cache: PrefixCache,
    position: str,
    session: Session,
    turn: FedTurn,
    suffix: list[int],
) -> Case:
    """Compare with the very cache that was committed, fed the same further steps."""
    tokens = session.tokens + suffix
    came = ask(model, cache, tokens)
    logits = []
    if came.restored == len(session.tokens):
        logits = [feed(model, session.prompt_cache, step) for step in came.steps]
    return _case(cache, position, tokens, came, digest(logits) if logits else "", came.restored)


def _branch(model: Any, cache: PrefixCache, prompt: list[int], steps: list[list[int]]) -> Case:
    """Leave the prompt in mid-block twice: recurrent families learn the branch the first time."""
    visitor = prompt[:BRANCH] + random_tokens(30, 4)
    with cache.session(visitor) as session:
        prefill(model, session, BLOCK)
        session.commit()
        first_visit = session.cached_tokens
    tokens = prompt[:BRANCH] + random_tokens(30, 5)
    came = ask(model, cache, tokens)
    return _replayed(model, cache, "mid-sequence branch", tokens, steps, came, first_visit)


def _replayed(
    model: Any,
    cache: PrefixCache,
    position: str,
    tokens: list[int],
    steps: list[list[int]],
    came: Continued,
    first_visit: int | None = None,
) -> Case:
    """Compare with a run on a fresh cache that ends its chunks where both requests did."""
    logits = run(model, [*_until(steps, came.restored), *came.steps])
    expected = digest(logits[-len(came.steps) :])
    visit = came.restored if first_visit is None else first_visit
    return _case(cache, position, tokens, came, expected, visit)


def _case(
    cache: PrefixCache,
    position: str,
    tokens: list[int],
    came: Continued,
    expected: str,
    first_visit: int,
) -> Case:
    chosen = targets(cache.lookup(tokens), cache.store.hot)
    return Case(position, tokens, came.restored, came.steps, expected, first_visit, chosen)


def _until(steps: list[list[int]], position: int) -> list[list[int]]:
    taken: list[list[int]] = []
    for step in steps:
        room = position - sum(map(len, taken))
        if room > 0:
            taken.append(step[:room])
    return taken
