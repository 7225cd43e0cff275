"""Memory stays flat, however many requests there were: each loop of the public API, request after
request, with a long prompt of which all but the end is restored each time.

Every run takes a few requests through each loop, and sees 8 bytes for each token that is left
behind; `nightly` takes 2,000.
"""

import gc
import os
import random
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator

from kit.drive import random_tokens, settings
from kit.examples import some
from kit.tinylm import LmServer, make_model, serve_ours
from kit.tokenizer import tokenizer
from kit.work import resident_bytes, traced_memory
from kit.zoo.family import FAMILIES, build_model
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.integrations.batch import CachedBatchGenerator
from omlx_cache.integrations.mlx_lm import stream_generate
from omlx_cache.session import Session

LENGTH = 32_768
WARM, FEW, MANY = 8, 16, 2_000
LEAKED = 8 * LENGTH
"""What one request leaves behind whose tokens are kept: 8 bytes each."""
FLAT = 16 << 20
TINY = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
PROMPT = random_tokens(LENGTH, 1)
TOKENIZER = tokenizer()
Loop = Callable[[int], int]


@pytest.fixture(scope="module")
def model() -> Any:
    """A real model whose 32,768 tokens take a megabyte."""
    family = FAMILIES["qwen3"]
    return build_model("qwen3", {**family.config, **TINY}, family.dtype, 0)


def prompt_of(number: int) -> list[int]:
    """A prompt that parts from the others in its last tokens."""
    return PROMPT[:-8] + random_tokens(8, 2 + number)


def open_store(directory: Path) -> BlockStore:
    """Budgets that a few requests fill, so that nothing is still growing into them; prompts are
    remembered by no store that nobody can ask."""
    budgets = {"hot_bytes": "8MiB", "queue_bytes": "8MiB", "cold_bytes": "64MiB"}
    return BlockStore(settings(directory, block_size=256, status="off", **budgets))


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory, model: Any) -> Path:
    """A directory that has the prompt: computing it takes longer than many requests."""
    directory = tmp_path_factory.mktemp("computed") / "cold"
    with open_store(directory) as store:
        cache = PrefixCache(model, store)
        with cache.session(PROMPT) as session:
            compute(cache, model, session)
        assert store.flush(60)
    return directory


@pytest.fixture
def cache(tmp_path: Path, computed: Path, model: Any) -> Iterator[PrefixCache]:
    shutil.copytree(computed, tmp_path / "cold")
    with open_store(tmp_path / "cold") as store:
        yield PrefixCache(model, store)
        gc.collect()
        assert not store.flights.live


def compute(cache: PrefixCache, model: Any, session: Session) -> None:
    for chunk in session.prefill_chunks(512):
        model(mx.array([chunk]), cache=session.prompt_cache)
        session.evaluate()
    session.append(7)
    model(mx.array([[7]]), cache=session.prompt_cache)
    session.commit()


def by_session(cache: PrefixCache, model: Any, number: int) -> int:
    with cache.session(prompt_of(number), max_new_tokens=8) as session:
        compute(cache, model, session)
        return session.cached_tokens


def by_lost_sessions(cache: PrefixCache, model: Any, number: int) -> int:
    return cache.session(prompt_of(number), max_new_tokens=8).cached_tokens


def by_begin(cache: PrefixCache, model: Any, number: int) -> int:
    prompt = prompt_of(number)
    begun = cache.begin(prompt, max_new_tokens=8)
    assert begun.wait(60)
    with cache.session(prompt, begun=begun, max_new_tokens=8) as session:
        compute(cache, model, session)
        return session.cached_tokens


def by_lost_begins(cache: PrefixCache, model: Any, number: int) -> int:
    begun = cache.begin(prompt_of(number), max_new_tokens=8)
    assert begun.wait(60)
    if number % 2:
        begun.cancel()
    return LENGTH


def by_looking(cache: PrefixCache, model: Any, number: int) -> int:
    prompt = prompt_of(number)
    cache.prefetch(prompt).wait(60)
    cache.pin(prompt, 0.01)
    cache.retire(prompt[: LENGTH // 2] + prompt)
    return cache.lookup(prompt).cached_tokens


def by_generate(cache: PrefixCache, model: Any, number: int) -> int:
    before = cache.store.stats().requests.restored_tokens
    for _ in stream_generate(model, TOKENIZER, prompt_of(number), cache, max_tokens=2):
        pass
    return cache.store.stats().requests.restored_tokens - before


BATCHES: dict[PrefixCache, CachedBatchGenerator] = {}
"""The one generator of a run's requests."""


def by_batch(cache: PrefixCache, model: Any, number: int) -> int:
    if cache not in BATCHES:
        BATCHES.clear()
        BATCHES[cache] = CachedBatchGenerator(BatchGenerator(model, prefill_step_size=512), cache)
    batch = BATCHES[cache]
    before = cache.store.stats().requests.restored_tokens
    batch.submit(prompt_of(number), max_tokens=2)
    while len(batch):
        batch.next()
    return cache.store.stats().requests.restored_tokens - before


LOOPS = {
    "session": by_session,
    "lost sessions": by_lost_sessions,
    "begin": by_begin,
    "lost begins": by_lost_begins,
    "look-ups": by_looking,
    "generate": by_generate,
    "batch": by_batch,
}


def take(loop: Loop, numbers: range) -> None:
    for number in numbers:
        assert loop(number) >= LENGTH - 8 - 256


@pytest.mark.parametrize("kind", some(list(LOOPS), "session", "lost sessions"))
def test_nothing_of_a_request_stays(kind: str, cache: PrefixCache, model: Any) -> None:
    """Python's own count of bytes: exact, so that a few requests are enough."""
    loop = partial(LOOPS[kind], cache, model)
    take(loop, range(WARM))
    with traced_memory():
        take(loop, range(WARM, 2 * WARM))
        before = traced()
        take(loop, range(2 * WARM, 2 * WARM + FEW))
        grown = traced() - before
    assert grown < FEW * LEAKED / 4


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", list(LOOPS))
def test_memory_is_flat_over_many_requests(kind: str, cache: PrefixCache, model: Any) -> None:
    loop = partial(LOOPS[kind], cache, model)
    take(loop, range(MANY // 10))
    before = resident(os.getpid())
    take(loop, range(MANY // 10, MANY))
    grown = resident(os.getpid()) - before
    print(f"{kind}: {MANY} requests of {LENGTH} tokens, grown by {grown / 2**20:.1f} MiB")
    assert grown < FLAT


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    gc.collect()
    mx.clear_cache()
    return resident_bytes(pid)


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


class Served:
    """A server in a process of its own, with the prompt in its cache."""

    def __init__(self, server: LmServer, directory: Path) -> None:
        self._server = server
        self._directory = directory
        self._text = random.Random(1).choices("abcdefgh", k=LENGTH - 64)

    def __call__(self, number: int) -> int:
        """Ask one request, and return how many of its tokens were restored."""
        content = "".join([*self._text, f" {number:06d}"])
        with self._server.client() as client:
            reply = client.chat.completions.create(
                model=str(self._directory),
                messages=[{"role": "user", "content": content}],
                max_tokens=2,
                temperature=0,
            )
        return int(reply.usage.prompt_tokens_details.cached_tokens)

    @property
    def resident(self) -> int:
        return resident(self._server.process.pid)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    directory = make_model(tmp_path / "model", "qwen3", **TINY, max_position_embeddings=LENGTH)
    budgets = {"HOT": "8MiB", "QUEUE": "8MiB", "COLD": "64MiB"}
    variables = {f"OMLX_CACHE_{name}_BYTES": size for name, size in budgets.items()}
    server = serve_ours(
        tmp_path / "home",
        "--model",
        str(directory),
        OMLX_CACHE_BLOCK_SIZE="256",
        OMLX_CACHE_SOCKET="off",
        **variables,
    )
    yield Served(server, directory)
    assert server.stop() == 0, server.text()


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="asks Linux for a process's memory")
@pytest.mark.parametrize(("warm", "count"), [(48, 96), (200, MANY)])
@pytest.mark.timeout(3600)
def test_a_servers_memory_is_flat(warm: int, count: int, served: Served) -> None:
    served(0)
    take(served, range(1, warm))
    before = served.resident
    take(served, range(warm, count))
    grown = served.resident - before
    print(f"server: {count} requests, grown by {grown / 2**20:.1f} MiB")
    # Some of it is what fills yet: the latest requests, events, sequences.
    assert grown < min(FLAT, (count - warm) * LEAKED * 3 / 4)
