"""Whatever was fed, a restored cache holds what the live one held, and goes on the same way.

Every value is drawn from its layer and token index, so a token at a wrong place shows. Nothing of
the subjects goes through an adapter: order is read with the class's own methods.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache as remembered
from itertools import accumulate, count
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from kit import zoo
from kit.drive import digest
from kit.examples import examples
from kit.versions import BEFORE_0_32, has_model, keys_and_values
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.kv import KVCache as RoomyKVCache
from omlx_cache.kv import RotatingKVCache as RoomyRotatingKVCache

if has_model("deepseek_v41"):
    from mlx_lm.models.deepseek_v41 import LayerCache
else:
    LayerCache = None

HEADS = 2
LONGEST = 512


@dataclass(frozen=True, slots=True)
class Widths:
    """Key and value channels, and the dtype of both."""

    key: int = 8
    value: int = 8
    dtype: mx.Dtype = mx.bfloat16


@dataclass(frozen=True, slots=True)
class Subject:
    """A cache class in one configuration. `trims`: it may be trimmed at any time."""

    name: str
    make: Callable[[], Any]
    widths: Widths = Widths()
    trims: bool = False


@remembered
def values(seed: int, width: int, dtype: mx.Dtype) -> mx.array:
    """What a side of a layer holds for tokens 0..LONGEST."""
    shape = (1, HEADS, LONGEST, width)
    drawn = mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
    mx.eval(drawn)
    return drawn


def state_of(seed: int, position: int, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """A recurrent array as it is at a position."""
    key = mx.random.key(seed * 100_003 + position)
    return mx.random.normal(shape, key=key).astype(dtype)


def feed(cache: Any, subject: Subject, start: int, count: int, seed: int = 1) -> list[mx.array]:
    """Give a cache the tokens [start, start + count); return what the class hands to attention."""
    if isinstance(cache, CacheList):
        return [
            array
            for index, child in enumerate(cache.caches)
            for array in feed(child, subject, start, count, seed * 10 + index)
        ]
    if isinstance(cache, ArraysCache):
        return _feed_arrays(cache, start + count, count, seed)
    if type(cache).__name__ == "LayerCache":
        return _feed_layer(cache, start + count, seed)
    if isinstance(cache, ChunkedKVCache):
        cache.maybe_trim_front()
    stop = start + count
    keys = values(2 * seed, subject.widths.key, subject.widths.dtype)[:, :, start:stop]
    other = values(2 * seed + 1, subject.widths.value, subject.widths.dtype)[:, :, start:stop]
    fetched = cache.update_and_fetch(keys, other)
    return list(_flat(fetched))


def _feed_arrays(cache: ArraysCache, position: int, count: int, seed: int) -> list[mx.array]:
    """The entry in the middle stays None; the first is in bf16, the last in float32."""
    cache[0] = state_of(seed, position, (1, 3, 6), mx.bfloat16)
    if len(cache.cache) > 1:
        cache[len(cache.cache) - 1] = state_of(seed + 1, position, (1, 2, 4, 4), mx.float32)
    cache.advance(count)
    return [array for array in cache.cache if array is not None]


def _feed_layer(cache: Any, position: int, seed: int) -> list[mx.array]:
    ratio = 4
    cache.window = state_of(seed, position, (1, min(position, cache.window_size), 6), mx.bfloat16)
    rows = position // ratio
    cache.compress_kv = state_of(seed + 1, position, (1, rows, 6), mx.bfloat16) if rows else None
    cache.index_k = state_of(seed + 2, position, (1, rows, 4), mx.bfloat16) if rows else None
    cache.pending_kv = state_of(seed + 3, position, (1, position % ratio, 6), mx.float32)
    cache.pending_gate = state_of(seed + 4, position, (1, position % ratio, 6), mx.float32)
    cache.offset = position
    return content(cache)


def content(cache: Any) -> list[mx.array]:
    """What a cache holds, tokens in temporal order."""
    if isinstance(cache, CacheList):
        return [array for child in cache.caches for array in content(child)]
    if isinstance(cache, ArraysCache):
        extras = [array for array in (cache.left_padding, cache.lengths) if array is not None]
        return [array for array in cache.cache if array is not None] + extras
    if type(cache).__name__ == "LayerCache":
        fields = (
            cache.window, cache.compress_kv, cache.index_k, cache.pending_kv, cache.pending_gate
        )  # fmt: skip
        return [array for array in fields if array is not None]
    if isinstance(cache, RotatingKVCache):
        ordered = [cache._temporal_order(array) for array in (cache.keys, cache.values)]
        return [array[:, :, : cache.offset] for array in ordered]
    return list(_flat(keys_and_values(cache)))


def shape_of(cache: Any) -> list[Any]:
    """Everything else that the class goes by: positions, ring index, which entries are None."""
    if isinstance(cache, CacheList):
        return [shape_of(child) for child in cache.caches]
    if isinstance(cache, ArraysCache):
        return [array is None for array in (*cache.cache, cache.left_padding, cache.lengths)]
    names = ("offset", "keep", "max_size", "group_size", "bits", "window_size")
    return [getattr(cache, name, None) for name in names]


def _flat(found: Any) -> Iterator[mx.array]:
    if isinstance(found, mx.array):
        yield found
    else:
        for part in found:
            yield from _flat(part)


def _padded() -> ArraysCache:
    cache = ArraysCache(3, left_padding=[2])
    cache.lengths = mx.array([100])
    return cache


def _nested() -> CacheList:
    return CacheList(ArraysCache(1), CacheList(KVCache(), RotatingKVCache(24)), KVCache())


PACKED = Widths(64, 128)
SUBJECTS = [
    Subject("KVCache", KVCache, trims=True),
    Subject("KVCache, wider values", KVCache, Widths(8, 24)),
    Subject("KVCache, values of width 0", KVCache, Widths(8, 0)),
    Subject("KVCache, float32", KVCache, Widths(4, 4, mx.float32)),
    Subject("KVCache, float16", KVCache, Widths(4, 12, mx.float16)),
    Subject("ConcatenateKVCache", ConcatenateKVCache),
    *[
        Subject(
            f"QuantizedKVCache, {bits} bits in groups of {size}",
            lambda bits=bits, size=size: QuantizedKVCache(size, bits),
            PACKED,
            trims=True,
        )
        for bits in (4, 8)
        for size in (32, 64)
    ],
    Subject("RotatingKVCache", lambda: RotatingKVCache(24)),
    Subject("RotatingKVCache, keep 4", lambda: RotatingKVCache(24, keep=4)),
    Subject("RotatingKVCache, keep 20", lambda: RotatingKVCache(40, keep=20)),
    Subject("RotatingKVCache, window of 16", lambda: RotatingKVCache(16), Widths(8, 24)),
    Subject("RotatingKVCache, long window", lambda: RotatingKVCache(100), Widths(4, 4, mx.float32)),
    Subject("RotatingKVCache, shorter than a block", lambda: RotatingKVCache(7)),
    Subject("RotatingKVCache, short and keep 3", lambda: RotatingKVCache(9, keep=3)),
    Subject("ArraysCache", lambda: ArraysCache(3)),
    Subject("ArraysCache, one array", lambda: ArraysCache(1)),
    Subject("ArraysCache, padded", _padded),
    Subject("CacheList", lambda: CacheList(KVCache(), KVCache()), Widths(8, 0)),
    Subject("CacheList, nested", _nested),
    Subject("omlx_cache.kv.KVCache", lambda: RoomyKVCache(step=32), trims=True),
    Subject("omlx_cache.kv.RotatingKVCache", lambda: RoomyRotatingKVCache(24, keep=4)),
]
if LayerCache is not None:
    SUBJECTS.append(Subject("LayerCache", lambda: LayerCache(24)))
if not BEFORE_0_32:
    SUBJECTS += [
        Subject("ChunkedKVCache", lambda: ChunkedKVCache(24)),
        Subject("ChunkedKVCache, long chunks", lambda: ChunkedKVCache(96)),
    ]

MODEL = zoo.build("llama")
SALTS = count()
BLOCKS = (16, 17, 32, 48)


class Feeding(NamedTuple):
    """A block size, prefill chunks, and single tokens after them; `trim` tokens go in between."""

    block: int
    chunks: list[int]
    decoded: int
    trim: int
    following: int


PLANS = st.builds(
    Feeding,
    block=st.sampled_from(BLOCKS),
    chunks=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    decoded=st.one_of(st.just(0), st.integers(1, 60)),
    trim=st.integers(0, 5),
    following=st.sampled_from([1, 1, 2, 9]),
)


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
    subject: Subject, cache: PrefixCache, tokens: list[int], plan: Feeding, salt: str
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


def positions(plan: Feeding, total: int) -> list[int]:
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
    stores: dict[int, BlockStore], subject: Subject, plan: Feeding
) -> None:
    check(stores[plan.block], subject, plan)


def check(store: BlockStore, subject: Subject, plan: Feeding) -> None:
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
    subject: Subject, plan: Feeding, steps: list[int], restored: Any, position: int
) -> None:
    """Compare what a cache holds, and what it gives for the next steps."""
    live = replay(subject, steps, position)
    where = (plan, position)
    assert shape_of(restored) == shape_of(live), where
    # A live window may hold older tokens than a restored one needs.
    if not any(kind in repr_of(live) for kind in ("Rotating", "Chunked")):
        assert_same(content(restored), content(live), where)
    following = plan.following if order_is_kept(plan, steps, position) else 2
    for count_, start in ((following, position), (1, position + following)):
        ours = feed(restored, subject, start, count_)
        assert_same(ours, feed(live, subject, start, count_), where)


def order_is_kept(plan: Feeding, steps: list[int], position: int) -> bool:
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


def repr_of(cache: Any) -> str:
    inner = getattr(cache, "caches", ())
    return type(cache).__name__ + "".join(repr_of(child) for child in inner)
