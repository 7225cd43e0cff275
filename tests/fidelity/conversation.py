"""How much of a conversation's first turn the second turn restores, with default settings."""

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from kit import zoo
from kit.drive import decode, prefill, random_tokens, settings
from omlx_cache import BlockStore, PrefixCache

LENGTHS = (300, 3000, 8000)
ANSWER = 24
QUESTION = 40
STEP = 512
GOAL = 0.9


@dataclass(frozen=True, slots=True)
class Retention:
    """Tokens restored of those that the two prompts share.

    `continued`: the second prompt repeats the answer as it was. `edited`: it repeats the first
    prompt only, as chat templates that drop reasoning make it.
    """

    prompt: int
    continued: int
    edited: int

    @property
    def shares(self) -> tuple[float, float]:
        return self.continued / (self.prompt + ANSWER), self.edited / self.prompt

    @property
    def good(self) -> bool:
        return min(self.shares) >= GOAL


def lengths_of(name: str) -> list[int]:
    """Return the prompt lengths that the family's position table has room for."""
    room = zoo.FAMILIES[name].max_context
    return [length for length in LENGTHS if length + ANSWER + QUESTION <= room]


def retention(name: str, length: int, directory: Path) -> Retention:
    """Run the first turn, then look how far either second turn is restored."""
    model = zoo.build(name)
    prompt, question = random_tokens(length, 11), random_tokens(QUESTION, 12)
    # Block size and snapshot stride are the defaults.
    with BlockStore(settings(directory, block_size=256)) as store:
        cache = PrefixCache(model, store)
        with cache.session(prompt) as session:
            turn = prefill(model, session, STEP)
            decode(model, session, turn, ANSWER)
            session.commit()
        restored = []
        for tokens in (prompt + turn.answer + question, prompt + question):
            with cache.session(tokens) as session:
                restored.append(session.cached_tokens)
        cache.clear()
    mx.clear_cache()
    return Retention(length, *restored)
