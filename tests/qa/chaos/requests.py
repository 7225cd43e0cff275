"""Requests of one thread against a store: each restores, is checked bit by bit, and stores."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from contract.arithmetic import DENSE, HYBRID, Arithmetic
from contract.driving import ask
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.session import Session

from .world import World

WAITS = 60.0
"""What a call may take that was given no deadline: it waits for a disk that may be slow."""
SALTS = (None, "a", "b", "c")
KEPT = 90
MIXTURES = {
    "dense": DENSE,
    "windowed": ("keep", "kv"),
    "hybrid": HYBRID,
    "recurrent": ("state", "state"),
    "recurrent and windowed": ("state", "window"),
}
"""The layers of models that compute nothing: what a restore must hold follows from the tokens."""


class SaltedPrompt(NamedTuple):
    """A prompt and the salt that it comes under."""

    tokens: tuple[int, ...]
    salt: str | None


class Talk:
    """The conversations of one thread; those of one `topic` begin alike in all threads."""

    def __init__(self, draw: random.Random, topic: str, longest: int = 180) -> None:
        self._draw = draw
        self._longest = longest
        self._told: list[SaltedPrompt] = []
        common = random.Random(topic)
        self._system = [common.randrange(1, 50_000) for _ in range(40)]

    def next(self) -> SaltedPrompt:
        """Return what is asked next."""
        draw = self._draw
        known = draw.choice(self._told) if self._told else None
        kind = draw.choice(["grow", "grow", "branch", "repeat", "begin", "begin", "other salt"])
        if known is None or kind == "begin":
            shared = self._system[: draw.choice([0, 16, 37, 40])]
            return SaltedPrompt((*shared, *self._new(draw.randrange(2, 70))), draw.choice(SALTS))
        if kind == "repeat":
            return known
        if kind == "other salt":
            return SaltedPrompt(known.tokens, draw.choice(SALTS))
        start = known.tokens
        if kind == "branch":
            start = start[: draw.randrange(1, len(start) + 1)]
        tokens = (*start, *self._new(draw.randrange(1, 50)))
        return SaltedPrompt(tokens[: self._longest], known.salt)

    def answer(self, most: int) -> list[int]:
        return self._new(self._draw.randrange(most + 1))

    def told(self, asked: SaltedPrompt) -> None:
        """Remember a conversation as it is now; the oldest make room."""
        if len(asked.tokens) < self._longest:
            self._told.append(asked)
        if len(self._told) > KEPT:
            self._told.pop(self._draw.randrange(len(self._told)))

    def _new(self, count: int) -> list[int]:
        return [self._draw.randrange(1, 50_000) for _ in range(count)]


class GivenUp(Exception):
    """A request that its scheduler gives up."""


class Interrupted(KeyboardInterrupt):
    """An interrupt that a fault made; any other ends the campaign."""


class Requester:
    """One thread's model and conversations; used by that thread alone.

    `committed` are the sequences whose commit came back, the latest last.
    """

    def __init__(self, world: World, mixture: str, thread: int) -> None:
        self.world = world
        self.mixture = mixture
        self.draw = world.random("thread", thread)
        self.talk = Talk(world.random("talk", thread), f"{world.seed}:{world.number}")
        self.model = Arithmetic(MIXTURES[mixture], world.number % 3)
        self.committed: dict[SaltedPrompt, None] = {}
        self._store: BlockStore | None = None
        self._cache: PrefixCache
        self._lost: list[Any] = []

    @property
    def cache(self) -> PrefixCache:
        """The prefix cache in the store that is open now."""
        if self._store is not self.world.store:
            self._store = self.world.store
            self._cache = PrefixCache(self.model, self._store)
        return self._cache

    def run(self, count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(GivenUp, Interrupted):
                self.one()
            self.world.tally.add(sessions=1)

    def one(self) -> None:
        """Make one request, which may break off anywhere."""
        asked = self.talk.next()
        with self._session(asked) as session:
            tokens = list(asked.tokens)
            tokens += self.talk.answer(self.draw.choice([0, 3, 20]))
            self._go_on(session, asked, tokens, self.draw.random() < 0.15)

    @contextlib.contextmanager
    def _session(self, asked: SaltedPrompt) -> Iterator[Session]:
        """Begin, prefetch or neither; open the session and compare what it restored."""
        world, draw = self.world, self.draw
        tokens, cache = list(asked.tokens), self.cache
        begun, deadline, allowed = None, draw.choice([None, None, 0.0, 0.005, 0.1]), WAITS
        if draw.random() < 0.15:
            with world.timed("prefetch", 0.0), world.interrupt():
                prefetch = cache.prefetch(tokens, salt=asked.salt)
            if draw.random() < 0.5:
                with world.timed("prefetch.wait", 0.05), world.interrupt():
                    prefetch.wait(0.05)
            elif draw.random() < 0.5:
                prefetch.cancel()
        if draw.random() < 0.3:
            with world.timed("begin", 0.0), world.interrupt():
                begun = cache.begin(tokens, salt=asked.salt)
            if draw.random() < 0.3:
                with world.timed("begun.wait", 0.05), world.interrupt():
                    begun.wait(0.05)
            if draw.random() < 0.1:
                begun.cancel()
            if draw.random() < 0.1:
                self._lost = [begun]
                raise GivenUp
            allowed = begun.deadline
        if deadline is not None:
            allowed = deadline
        with (
            world.timed("session", allowed),
            world.interrupt(),
        ):
            session = cache.session(tokens, salt=asked.salt, begun=begun, deadline=deadline)
        position = session.cached_tokens
        found = self.model.wrong(session.prompt_cache, tokens, position)
        if found or position >= len(tokens):
            world.fail("wrong", f"{self.mixture}, {position} of {len(tokens)}: {found}")
        world.tally.add(restored=position)
        if draw.random() < 0.04:
            # Nobody closes it: the finalizer has to.
            self._lost = [session]
            raise GivenUp
        with session:
            yield session

    def _go_on(
        self, session: Session, asked: SaltedPrompt, tokens: list[int], breaks_off: bool
    ) -> None:
        world, draw = self.world, self.draw
        position, caches = session.cached_tokens, session.prompt_cache
        chunks = session.prefill_chunks(step=draw.choice([7, 16, 40, 200]))
        while True:
            with world.timed("prefill", WAITS), world.interrupt():
                chunk = next(chunks, None)
            if chunk is None:
                break
            self.model.feed(caches, chunk, position)
            position += len(chunk)
            if breaks_off and draw.random() < 0.5:
                raise GivenUp
        at_once = draw.choice([1, 8])
        while position < len(tokens):
            stop = min(len(tokens), position + at_once)
            self.model.feed(caches, tokens[position:stop], position)
            with world.timed("extend", WAITS), world.interrupt():
                session.extend(tokens[position:stop])
            position = stop
        if draw.random() < 0.2:
            found = self.model.wrong(caches, tokens, position)
            if found:
                world.fail("wrong", f"{self.mixture}, continued to {position}: {found}")
        if draw.random() < 0.1:
            # Recorded and never fed: no page may be stored under its key.
            session.extend([1, 2, 3])
        if breaks_off:
            return
        allowed = min(WAITS, float(world.options.get("commit_wait_seconds", 2.0)))
        with world.timed("commit", allowed), world.interrupt():
            session.commit(release=draw.random() < 0.3)
        told = SaltedPrompt(tuple(tokens), asked.salt)
        self.committed.pop(told, None)
        self.committed[told] = None
        self.talk.told(told)

    def lookup(self, asked: SaltedPrompt) -> int:
        """Return how much of a sequence can be restored."""
        # One more token, since a session leaves the last one to be computed.
        return self.cache.lookup([*asked.tokens, 0], salt=asked.salt).cached_tokens

    def restore(self, asked: SaltedPrompt) -> int:
        """Restore a sequence, waiting for the disk, and return how much of it came, all right."""
        tokens = [*asked.tokens, 0]
        with (
            self.world.timed("session", WAITS),
            self.cache.session(tokens, salt=asked.salt) as session,
        ):
            position = session.cached_tokens
            found = self.model.wrong(session.prompt_cache, tokens, position)
        if found:
            self.world.fail("wrong", f"{self.mixture}, {position} restored: {found}")
        self.world.tally.add(restored=position, sessions=1)
        return position

    def store(self, asked: SaltedPrompt) -> None:
        """Make a plain request: restore, compute the rest, commit."""
        turn = ask(self.model, self.cache, asked.tokens, step=64, salt=asked.salt)
        if turn.wrong:
            self.world.fail("wrong", f"{self.mixture}, {turn.cached} restored: {turn.wrong}")
        self.world.tally.add(sessions=1)
