"""Whatever was fed, a restored cache holds what the live one held, and goes on the same way."""

from collections.abc import Iterator
from itertools import accumulate, count
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from adapters.subjects import SUBJECTS, Subject, content, feed, shape_of
from kit import zoo
from kit.drive import digest, settings
from kit.examples import examples
from omlx_cache import BlockStore, PrefixCache

MODEL = zoo.build("llama")
SALTS = count()


class Plan(NamedTuple):
    """A block size, prefill chunks, and single tokens after them; `trim` tokens go in between."""

    block: int
    chunks: list[int]
    decoded: int
    trim: int
    following: int


PLANS = st.builds(
    Plan,
    block=st.sampled_from([16, 17, 32, 48]),
    chunks=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    decoded=st.one_of(st.just(0), st.integers(1, 60)),
    trim=st.integers(0, 5),
    following=st.sampled_from([1, 1, 2, 9]),
)


@pytest.fixture
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, BlockStore]]:
    """One store in memory for each block size."""
    opened = {
        block: BlockStore(settings(Path("unused"), block_size=block, hot_cache_only=True))
        for block in (16, 17, 32, 48)
    }
    yield opened
    for store in opened.values():
        store.hot.check_integrity()
        assert store.stats().snapshots.live == 0
        store.close()


def replay(subject: Subject, steps: list[int], position: int) -> Any:
    """A cache that took the same steps as far as a position, without any session."""
    cache = subject.make()
    fed = 0
    for step in steps:
        taken = min(step, position - fed)
        if taken > 0:
            mx.eval(feed(cache, subject, fed, taken))
            fed += taken
    return cache


def serve(
    subject: Subject, cache: PrefixCache, tokens: list[int], plan: Plan, salt: str
) -> list[int]:
    """One session over a prompt of the plan's chunks, its answer fed token by token.

    Returns the steps taken: a session ends chunks where it wants to capture something.
    """
    prompt = sum(plan.chunks)
    with cache.session(tokens[:prompt], salt=salt) as session:
        (live,) = session.prompt_cache
        sizes = iter(plan.chunks)
        steps, fed, left = [], 0, 0
        while fed < prompt:
            left = left or next(sizes)
            taken = session.next_stop(left)
            mx.eval(feed(live, subject, fed, taken))
            steps.append(taken)
            fed += taken
            left -= taken
            session.checkpoint(fed)
        for _ in range(plan.decoded):
            mx.eval(feed(live, subject, fed, 1))
            session.append(tokens[fed])
            steps.append(1)
            fed += 1
        if plan.trim and subject.trims:
            feed(live, subject, fed, plan.trim)
            live.trim(plan.trim)
        session.commit()
    return steps


def assert_same(ours: list[mx.array], theirs: list[mx.array], where: object) -> None:
    assert [tuple(a.shape) for a in ours] == [tuple(a.shape) for a in theirs], where
    assert [a.dtype for a in ours] == [a.dtype for a in theirs], where
    pairs = [(mx.contiguous(a), mx.contiguous(b)) for a, b in zip(ours, theirs, strict=True)]
    mx.eval(pairs)
    for one, other in pairs:
        if one.size:
            assert digest([one.view(mx.uint8)]) == digest([other.view(mx.uint8)]), where


def positions(plan: Plan, total: int) -> list[int]:
    """Prompt lengths to ask for: around every boundary, every step's end, and the whole."""
    ends = set(range(plan.block, total + 1, plan.block)) | {total, sum(plan.chunks)}
    return sorted({p for end in ends for p in (end - 1, end, end + 1) if 1 <= p <= total})


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
@hypothesis_settings(
    max_examples=examples(7, nightly=100),
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=PLANS)
def test_a_restored_cache_equals_the_live_one(
    stores: dict[int, BlockStore], subject: Subject, plan: Plan
) -> None:
    check(stores[plan.block], subject, plan)


def check(store: BlockStore, subject: Subject, plan: Plan) -> None:
    """Serve a sequence, then compare every restore of it with a run of the same steps."""
    cache = PrefixCache(MODEL, store, make_cache=lambda: [subject.make()])
    assert cache.unsupported_reason is None
    salt = str(next(SALTS))
    total = sum(plan.chunks) + plan.decoded
    tokens = [7 * index % 1000 for index in range(total)]
    steps = serve(subject, cache, tokens, plan, salt)
    assert sum(steps) == total
    best = 0
    for asked in positions(plan, total):
        with cache.session([*tokens[:asked], 5000], salt=salt) as session:
            (restored,) = session.prompt_cache
            reached = session.cached_tokens
        assert reached <= asked
        best = max(best, reached)
        if reached:
            same_as_live(subject, plan, steps, restored, reached)
    assert best == total, "the end of a sequence is always a restore point"
    cache.clear(salt=salt)


def same_as_live(
    subject: Subject, plan: Plan, steps: list[int], restored: Any, position: int
) -> None:
    """Compare what a cache holds, and what it gives for the next steps."""
    live = replay(subject, steps, position)
    where = (plan, position)
    assert shape_of(restored) == shape_of(live), where
    if not windowed(live):
        assert_same(content(restored), content(live), where)
    following = plan.following if order_is_kept(plan, steps, position) else 2
    for count_, start in ((following, position), (1, position + following)):
        ours = feed(restored, subject, start, count_)
        assert_same(ours, feed(live, subject, start, count_), where)


def order_is_kept(plan: Plan, steps: list[int], position: int) -> bool:
    """Whether a ring has the order of a run that stopped here.

    That is known where a step ended at a boundary or with its request. Elsewhere the order is
    temporal, as after a chunk of several tokens, which would put any other order right.
    """
    ends = list(accumulate(steps))
    if position in ends:
        kept = position % plan.block == 0 or position in (sum(plan.chunks), ends[-1])
        return kept or steps[ends.index(position)] > 1
    start = max((end for end in ends if end < position), default=0)
    return position - start > 1


def windowed(cache: Any) -> bool:
    """Whether the live cache may hold older tokens than a restored one needs."""
    return "Rotating" in repr_of(cache) or "Chunked" in repr_of(cache)


def repr_of(cache: Any) -> str:
    inner = getattr(cache, "caches", ())
    return type(cache).__name__ + "".join(repr_of(child) for child in inner)
