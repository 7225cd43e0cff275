"""Real mlx-lm models, small: restored caches and logits against those of runs without a break.

Bits depend on how tokens were cut into steps, so what is right is what some live cache held: every
token's bits are noted, under its prefix, whenever a model computes them.
"""

import copy
import hashlib
from contextlib import ExitStack, suppress
from typing import Any

from kit import zoo
from kit.drive import digest, feed
from kit.restoring import contents, needed
from omlx_cache import PrefixCache
from omlx_cache.pages.layout import layout_of

from .faults.disk import READS, WRITES, ChaosDisk
from .requests import GivenUp
from .talk import Asked, Talk
from .truth import Truth
from .world import World, small_options

# One for each mixture of cache classes; the quantised one is a llama whose sessions ask for it.
FAMILIES = (
    "llama",
    "llama, quantised",
    "gemma3_text",
    "qwen3_next",
    "deepseek_v3",
    "mamba2",
    "falcon_h1",
    "llama4",
    "recurrent_gemma",
)
SHADOWS = 6


class Witness:
    """What live caches held, by prefix and tensor."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str, int], set[bytes]] = {}

    def note(self, caches: list[Any], tokens: list[int], start: int) -> None:
        """Note the tokens from `start` on, and the state at the end, of a live cache."""
        for key, place, bits in self._facts(caches, tokens):
            if place >= start or place < 0:
                self._seen.setdefault(key, set()).add(bits)

    def wrong(self, caches: list[Any], tokens: list[int]) -> str:
        """Return what a restored cache holds that no live one did, "" when all is right."""
        held = contents(caches)
        for name, wanted in needed(caches, len(tokens)).items():
            if not wanted <= held.get(name, {}).keys() and -1 not in held.get(name, {}):
                return f"{name} lacks tokens"
        for key, place, bits in self._facts(caches, tokens):
            if bits not in self._seen.get(key, ()):
                return f"{key[1]} differs at {place}"
        return ""

    def _facts(self, caches: list[Any], tokens: list[int]) -> Any:
        prefix = Truth(tokens).prefix
        for name, found in contents(caches).items():
            for place, raw in found.items():
                end = len(tokens) - 1 if place < 0 else place
                key = (int(prefix[end]), name, end)
                yield key, place, hashlib.blake2b(raw, digest_size=12).digest()


def rings(caches: list[Any]) -> list[int | None]:
    """Return where the next token goes in each window's ring: sums go in the ring's order."""
    return [getattr(leaf.cache, "_idx", None) for leaf in layout_of(caches).leaves]


class Player:
    """Requests of one model, one after the other."""

    def __init__(self, world: World, family: str) -> None:
        self.world, self.draw = world, world.random("player")
        name = family.partition(",")[0]
        self.model = zoo.build(name)
        self.vocab = zoo.FAMILIES[name].vocab
        self.bits = 8 if "quantised" in family else None
        self.talk = Talk(world.random("talk"), str(world.number), longest=150)
        self.witness = Witness()
        self.shadows: dict[Asked, list[Any]] = {}
        self.cache: PrefixCache

    def open(self) -> None:
        self.cache = PrefixCache(self.model, self.world.open())

    def one(self) -> None:
        """Make one request, which may break off."""
        world, draw = self.world, self.draw
        asked = self._asked()
        tokens = list(asked.tokens)
        deadline = draw.choice([None, None, 0.0, 0.1])
        with ExitStack() as leaving:
            with world.timed("session", 60.0 if deadline is None else deadline):
                session = self.cache.session(
                    tokens, salt=asked.salt, kv_bits=self.bits, deadline=deadline
                )
            leaving.enter_context(session)
            position, caches = session.cached_tokens, session.prompt_cache
            if position:
                found = self.witness.wrong(caches, tokens[:position])
                if found:
                    world.fail("wrong", f"{position} of {len(tokens)} tokens: {found}")
            world.tally.add(restored=position)
            shadow = self.shadows.get(Asked(tuple(tokens[:position]), asked.salt))
            if shadow is not None:
                # A prefix that two requests cut into other steps has pages of either; and a window
                # of the same tokens lies in its ring as either left it.
                same = contents(shadow) == contents(caches) and rings(shadow) == rings(caches)
                shadow = copy.deepcopy(shadow) if same else None
            for chunk in session.prefill_chunks(step=draw.choice([16, 40, 100])):
                self._feed(caches, shadow, tokens, position, chunk)
                position += len(chunk)
                if draw.random() < 0.05:
                    raise GivenUp
            for _ in range(draw.choice([0, 5, 20])):
                token = draw.randrange(self.vocab)
                tokens.append(token)
                self._feed(caches, shadow, tokens, position, [token])
                session.append(token)
                position += 1
            session.commit()
        told = Asked(tuple(tokens), asked.salt)
        self.talk.told(told)
        self.shadows[told] = caches
        if len(self.shadows) > SHADOWS:
            self.shadows.pop(next(iter(self.shadows)))

    def _asked(self) -> Asked:
        if self.shadows and self.draw.random() < 0.3:
            known = self.draw.choice(list(self.shadows))
            tokens = (*known.tokens, 1, 2, *self.talk.answer(20))[:200]
            return Asked(tuple(token % self.vocab for token in tokens), known.salt)
        asked = self.talk.next()
        return Asked(tuple(token % self.vocab for token in asked.tokens), asked.salt)

    def _feed(
        self,
        caches: list[Any],
        shadow: list[Any] | None,
        tokens: list[int],
        position: int,
        chunk: list[int],
    ) -> None:
        """Feed a chunk to the session's cache, and to the one that nobody ever restored."""
        logits = feed(self.model, caches, chunk)
        self.witness.note(caches, tokens[: position + len(chunk)], position)
        if shadow is not None:
            self.world.tally.add(logits=1)
            if digest([logits]) != digest([feed(self.model, shadow, chunk)]):
                self.world.fail("wrong", f"other logits at {position}")


def run_models(world: World) -> None:
    """Run one family's requests, on a disk that fails now and then, with restarts."""
    family = FAMILIES[world.number % len(FAMILIES)]
    small = small_options(world.draw)
    larger = ("hot_bytes", "queue_bytes", "cold_bytes", "restore_bytes")
    world.options = {**small, **{name: 4 * small[name] for name in larger}}
    world.disk = disk = ChaosDisk(world.random("disk"))
    disk.refused = READS + WRITES
    player = Player(world, family)
    player.open()
    for _ in range(max(8, world.sessions // 5)):
        disk.odds = world.draw.choice([0.0, 0.0, 0.0, 0.05])
        with suppress(GivenUp):
            player.one()
        world.tally.add(sessions=1)
        world.count()
        if world.draw.random() < 0.1:
            disk.heal()
            world.close()
            player.open()
    disk.heal()
    world.close()
    world.check_closed()
