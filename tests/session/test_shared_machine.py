"""Requests that come, wait, compute, end and vanish in any order: nobody computes what another is
computing, nobody waits for nothing, and answers are right."""

import gc
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mlx_lm.models.cache import make_prompt_cache

from kit import zoo
from kit.drive import feed, random_tokens, settings
from kit.restoring import BLOCK, DENSE, HYBRID, WINDOWED
from omlx_cache import Begun, BlockStore, PrefixCache, Session

CLOSE = 1e-3
PARTS = [[random_tokens(length, 10 * n + length) for n in range(2)] for length in (75, 50, 40)]
SALTS = ["one", "another"]
which = st.integers(0, 20)


@cache
def model_of(family: str) -> Any:
    model = zoo.build(family)
    model.set_dtype(mx.float32)
    return model


@cache
def right(family: str, prompt: tuple[int, ...]) -> np.ndarray:
    """The logits of a prompt's last token, without a cache."""
    model = model_of(family)
    return np.array(feed(model, make_prompt_cache(model), prompt)[-1])


def shared(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other[:-1], strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other) - 1))


class Request:
    """A prompt of a tenant; `fed` tokens of it are in the cache of its session, once it has one."""

    def __init__(self, prompt: list[int], salt: str, begun: Begun) -> None:
        self.prompt, self.salt, self.begun = prompt, salt, begun
        self.session: Session | None = None
        self.fed = 0


class Sharing(RuleBasedStateMachine):
    family: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        fields = {"hot_cache_only": True, "snapshot_stride": 1024}
        self.store = BlockStore(settings(self.directory.name, **fields))  # type: ignore[arg-type]
        self.cache = PrefixCache(model_of(self.family), self.store)
        self.waiting: list[Request] = []
        self.active: list[Request] = []
        self.all: list[Request] = []
        self.dropped = False

    @rule(parts=st.lists(st.integers(0, 1), min_size=1, max_size=3), salt=st.sampled_from(SALTS))
    def come(self, parts: list[int], salt: str) -> None:
        prompt = [t for level, part in enumerate(parts) for t in PARTS[level][part]]
        self.waiting.append(Request(prompt, salt, self.cache.begin(prompt, salt=salt)))

    def ahead(self, request: Request, cached: int) -> list[int]:
        """How far those that are computed now could bring a request, beyond a block more."""
        dense = self.family == DENSE
        found = []
        for other in self.active:
            if other is request or other.salt != request.salt:
                continue
            if other.fed < len(other.prompt) - 1:
                goal = shared(other.prompt, request.prompt)
                goal = goal // BLOCK * BLOCK if dense else goal
                if other.fed < goal and goal >= cached + BLOCK:
                    found.append(goal)
        return found

    @rule()
    def take_the_first_that_is_ready(self) -> None:
        free = [request for request in self.waiting if not request.begun.held]
        if not free:
            return
        request = free[0]
        assert request.begun.wait(30)
        self.waiting.remove(request)
        self.take(request)
        cached = request.session.cached_tokens
        assert not self.ahead(request, cached)
        if self.family == DENSE and not self.dropped:
            reached = [
                min(shared(other.prompt, request.prompt), other.fed) // BLOCK * BLOCK
                for other in self.all
                if other is not request and other.salt == request.salt
            ]
            assert cached >= max(reached, default=0)

    @precondition(lambda self: self.waiting)
    @rule(which=which)
    def take_one_whether_it_is_ready_or_not(self, which: int) -> None:
        self.take(self.waiting.pop(which % len(self.waiting)))

    def take(self, request: Request) -> None:
        request.session = self.cache.session(request.prompt, salt=request.salt, begun=request.begun)
        request.fed = request.session.cached_tokens
        self.active.append(request)
        self.all.append(request)

    @precondition(lambda self: self.active)
    @rule(which=which, chunks=st.integers(1, 4))
    def compute(self, which: int, chunks: int) -> None:
        request = self.active[which % len(self.active)]
        for _ in range(chunks):
            self.step(request)

    def step(self, request: Request) -> None:
        session = request.session
        count = session.next_stop(BLOCK)
        if not count:
            return
        chunk = request.prompt[request.fed : request.fed + count]
        logits = feed(self.cache_model, session.prompt_cache, chunk)
        request.fed += count
        session.checkpoint(request.fed)
        if request.fed == len(request.prompt):
            wanted = right(self.family, tuple(request.prompt))
            ours = np.array(logits[-1])
            assert np.max(np.abs(ours - wanted)) <= CLOSE * np.max(np.abs(wanted))

    @property
    def cache_model(self) -> Any:
        return model_of(self.family)

    @precondition(lambda self: self.active)
    @rule(which=which, end=st.sampled_from(["commit", "abort", "lose"]))
    def end(self, which: int, end: str) -> None:
        request = self.active.pop(which % len(self.active))
        session, request.session = request.session, None
        if end == "commit":
            session.commit()
        elif end == "abort":
            session.abort()
        del session
        if end == "lose":
            gc.collect()

    @precondition(lambda self: self.waiting)
    @rule(which=which)
    def cancel(self, which: int) -> None:
        self.waiting.pop(which % len(self.waiting)).begun.cancel()

    @rule()
    def drop_all_pages(self) -> None:
        self.store.shrink_hot(0)
        self.dropped = True

    @invariant()
    def who_is_held_is_held_for_somebody(self) -> None:
        for request in self.waiting:
            if request.begun.held:
                assert self.ahead(request, 0)

    def teardown(self) -> None:
        steps = 0
        while self.waiting or self.active:
            steps += 1
            assert steps < 1000, "nobody can go on"
            if any(not request.begun.held for request in self.waiting):
                self.take_the_first_that_is_ready()
            elif self.active:
                self.step(self.active[0])
                if self.active[0].fed == len(self.active[0].prompt):
                    self.end(0, "commit")
        gc.collect()
        stats = self.store.stats()
        assert stats.requests.live_sessions == 0
        assert self.store.restores.nbytes == 0
        assert not self.store.flights.live
        assert not self.store.flights.waiters
        self.store.close()
        self.directory.cleanup()


class SharingDense(Sharing):
    family = DENSE


class SharingWindows(Sharing):
    family = WINDOWED


class SharingState(Sharing):
    family = HYBRID


for machine in (SharingDense, SharingWindows, SharingState):
    machine.TestCase.settings = examples(max_examples=12, stateful_step_count=20, deadline=None)

TestDense = SharingDense.TestCase
TestWindows = SharingWindows.TestCase
TestState = SharingState.TestCase
