"""What is restored is what an uninterrupted run would hold, bit for bit.

Real mlx-lm models of four mixtures of caches (every token; recurrent state; windows; latent
attention) with random weights: a second request's logits equal those of the first, from memory,
from the disk, and after a restart. A model of arithmetic says the same of every byte of its caches,
in another process and for prompts that part, go on and end inside a block.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from contract.arithmetic import DENSE, HYBRID, WINDOWED, Arithmetic, tokens_of
from contract.driving import BLOCK, Child, ask, compute, logits_of, settings
from kit import zoo
from omlx_cache import BlockStore, PrefixCache

COUNT = 3 * BLOCK + 9
FAMILIES = ["llama", "qwen3_next", "gemma3_text", "deepseek_v3"]
MIXTURES = [DENSE, HYBRID, WINDOWED, ("kv", "keep"), ("kv", "window", "state")]


def prompt(count: int = COUNT, seed: int = 0) -> list[int]:
    return mx.random.randint(0, 250, (count,), key=mx.random.key(seed)).tolist()


def bits(logits: mx.array) -> bytes:
    return np.array(logits.view(mx.uint8)).tobytes()


@pytest.fixture(scope="module", params=FAMILIES)
def real(request: pytest.FixtureRequest) -> Any:
    return zoo.build(request.param)


def test_a_real_model_goes_on_from_memory_disk_and_restart_with_the_same_bits(
    real: Any, open_store: Callable[..., BlockStore]
) -> None:
    tokens = prompt()
    store = open_store()
    cache = PrefixCache(real, store)
    first = compute(real, cache, tokens)
    again = compute(real, cache, tokens)
    assert store.flush(30)
    assert store.close()
    store = open_store(hot_bytes=0)
    cold = compute(real, PrefixCache(real, store), tokens)
    assert first.cached == 0
    assert again.cached == cold.cached == COUNT - 1
    assert again.reason is cold.reason is None
    assert bits(again.logits[-1]) == bits(cold.logits[-1])
    longer = compute(real, PrefixCache(real, store), tokens + prompt(40, seed=1))
    assert longer.cached >= COUNT - 1


def test_a_real_model_restores_at_a_chunks_end_what_an_uninterrupted_run_holds(
    real: Any, open_store: Callable[..., BlockStore]
) -> None:
    tokens = prompt(3 * BLOCK + 1)
    store = open_store()
    for turn in (tokens, tokens + prompt(BLOCK, seed=2)):
        compute(real, PrefixCache(real, store), turn)
    assert store.flush(30)
    assert store.close()
    store = open_store(hot_bytes=0)
    got = compute(real, PrefixCache(real, store), tokens)
    assert got.cached == 3 * BLOCK
    plain = make_prompt_cache(real)
    for start in range(0, 3 * BLOCK, BLOCK):
        logits_of(real, tokens[start : start + BLOCK], plain)
    assert bits(got.logits[-1]) == bits(logits_of(real, tokens[-1:], plain))


@pytest.mark.parametrize("kinds", MIXTURES, ids="-".join)
def test_every_byte_is_right_from_memory_from_disk_and_after_a_restart(
    kinds: tuple[str, ...], open_store: Callable[..., BlockStore]
) -> None:
    model, tokens = Arithmetic(kinds), tokens_of(1, COUNT)
    store = open_store()
    cache = PrefixCache(model, store)
    assert ask(model, cache, tokens).cached == 0
    hot = ask(model, cache, tokens)
    assert store.flush(30)
    assert store.close()
    store = open_store(hot_bytes=0)
    cold = ask(model, PrefixCache(model, store), tokens)
    for turn in (hot, cold):
        assert (turn.cached, turn.reason, turn.wrong) == (COUNT - 1, None, "")


def test_every_byte_is_right_in_another_process(
    directory: Path, child: Callable[..., Child]
) -> None:
    with BlockStore(settings(directory)) as store:
        for kinds in MIXTURES:
            model = Arithmetic(kinds)
            ask(model, PrefixCache(model, store), tokens_of(1, COUNT))
        assert store.flush(30)
        other = child("-m", "contract.worker", json.dumps(fields(directory)))
        assert other.hear() == {"ready": True}
        for kinds in MIXTURES:
            told = other.ask({"do": "ask", "seed": 1, "count": COUNT, "kinds": kinds})
            assert told == {"cached": COUNT - 1, "reason": None, "wrong": "", "flushed": True}
            # What the other one stores while both run is found here.
            other.ask({"do": "ask", "seed": 2, "count": COUNT, "kinds": kinds})
            model = Arithmetic(kinds)
            turn = ask(model, PrefixCache(model, store), tokens_of(2, COUNT))
            assert (turn.cached, turn.wrong) == (COUNT - 1, "")
        assert other.end() == 0


def fields(directory: Path) -> dict[str, Any]:
    return {
        "cold_dir": str(directory),
        "cold_bytes": "256MiB",
        "hot_bytes": "64MiB",
        "min_free_bytes": 0,
        "durability": "none",
        "socket": "off",
        "block_size": BLOCK,
    }


@pytest.mark.parametrize("kinds", MIXTURES, ids="-".join)
def test_a_turn_that_goes_on_restores_the_turn_before_it(
    kinds: tuple[str, ...], open_store: Callable[..., BlockStore]
) -> None:
    model, whole = Arithmetic(kinds), tokens_of(3, 400)
    store = open_store()
    cache = PrefixCache(model, store)
    at = 0
    for end in (50, 51, 90, 128, 129, 200, 300, 400):
        turn = ask(model, cache, whole[:end])
        assert turn.wrong == ""
        assert turn.cached == at
        at = end


@pytest.mark.parametrize("kinds", MIXTURES, ids="-".join)
def test_prompts_that_part_share_what_they_have_in_common_and_nothing_else(
    kinds: tuple[str, ...], open_store: Callable[..., BlockStore]
) -> None:
    model, common = Arithmetic(kinds), tokens_of(4, 4 * BLOCK)
    store = open_store()
    cache = PrefixCache(model, store)
    for number in range(4):
        turn = ask(model, cache, common + tokens_of(10 + number, 50))
        assert turn.wrong == ""
        assert turn.cached <= len(common)
    # By now the place where they part is a restore point of every kind of cache.
    assert turn.cached == len(common)


@pytest.mark.parametrize("kinds", MIXTURES, ids="-".join)
def test_equal_blocks_behind_other_tokens_are_other_blocks(
    kinds: tuple[str, ...], open_store: Callable[..., BlockStore]
) -> None:
    model, same = Arithmetic(kinds), tokens_of(4, 4 * BLOCK)
    cache = PrefixCache(model, open_store())
    first, other = tokens_of(5, 2 * BLOCK), tokens_of(6, 2 * BLOCK)
    ask(model, cache, first + same)
    ask(model, cache, other)
    turn = ask(model, cache, other + same)
    assert turn.wrong == ""
    assert turn.cached <= len(other)


@pytest.mark.parametrize("kinds", MIXTURES, ids="-".join)
def test_what_was_generated_and_fed_is_restored_with_the_prompt(
    kinds: tuple[str, ...], open_store: Callable[..., BlockStore]
) -> None:
    model, prompt_tokens, answer = Arithmetic(kinds), tokens_of(5, 70), tokens_of(6, 60)
    store = open_store()
    cache = PrefixCache(model, store)
    with cache.session(prompt_tokens) as session:
        at = 0
        while count := session.next_stop(BLOCK):
            model.feed(session.prompt_cache, session.remaining_tokens[at : at + count], at)
            at += count
            session.checkpoint()
        for number, token in enumerate(answer):
            model.feed(session.prompt_cache, [token], 70 + number)
            session.append(token)
        assert session.tokens == prompt_tokens + answer
        session.commit(ended="turn")
    turn = ask(model, cache, [*prompt_tokens, *answer, 7, 8, 9])
    assert (turn.cached, turn.wrong) == (130, "")


def test_a_sequence_of_many_times_the_memory_is_restored(
    open_store: Callable[..., BlockStore],
) -> None:
    model, tokens = Arithmetic(), tokens_of(7, 40 * BLOCK)
    nbytes = 2 * 2 * 2 * 32 * 2 * len(tokens)
    for hot_bytes in (0, nbytes // 8):
        store = open_store(hot_bytes=hot_bytes, queue_bytes=max(hot_bytes, 1 << 20))
        cache = PrefixCache(model, store)
        with cache.session(tokens, salt=str(hot_bytes)) as session:
            at = 0
            for chunk in session.prefill_chunks(step=BLOCK):
                model.feed(session.prompt_cache, chunk, at)
                at += len(chunk)
                assert store.flush(30)
            session.commit()
        assert store.flush(30)
        turn = ask(model, cache, tokens, salt=str(hot_bytes))
        assert (turn.cached, turn.wrong) == (len(tokens) - 1, "")
        assert store.stats().hot.peak_bytes <= max(hot_bytes, 1 << 20)
        assert store.close()


@pytest.mark.parametrize("bits_", [4, 8])
def test_quantised_sessions_restore_their_packed_bits(
    bits_: int, open_store: Callable[..., BlockStore]
) -> None:
    model, tokens = Arithmetic(), tokens_of(8, COUNT)
    options: dict[str, Any] = {"kv_bits": bits_, "kv_group_size": 32}
    store = open_store()
    held = []
    for restart in (False, False, True):
        if restart:
            assert store.flush(30)
            assert store.close()
            store = open_store(hot_bytes=0)
        cache = PrefixCache(model, store)
        with cache.session(tokens, **options) as session:
            at = session.cached_tokens
            for chunk in session.prefill_chunks(step=BLOCK):
                model.feed(session.prompt_cache, chunk, at)
                at += len(chunk)
            held.append([part[..., :COUNT, :] for part in parts(session.prompt_cache)])
            session.commit()
        assert session.cached_tokens == (COUNT - 1 if len(held) > 1 else 0)
    for other in held[1:]:
        for mine, first in zip(other, held[0], strict=True):
            assert mx.array_equal(mine, first).item()


def parts(prompt_cache: list[Any]) -> list[mx.array]:
    return [part for cache in prompt_cache for side in (cache.keys, cache.values) for part in side]


@pytest.mark.parametrize("codec", ["affine8", "k8v4"])
def test_a_lossy_codec_gives_the_same_bits_from_memory_and_from_the_disk(
    codec: str, open_store: Callable[..., BlockStore]
) -> None:
    model, tokens = Arithmetic(("kv", "kv")), tokens_of(9, 3 * BLOCK)
    lossy: dict[str, Any] = {"codec": codec, "min_quantize_tokens": 0}
    store = open_store(**lossy)
    cache = PrefixCache(model, store)
    ask(model, cache, tokens)
    held = []
    for restart in (False, True):
        if restart:
            assert store.flush(30)
            assert store.close()
            store = open_store(**lossy, hot_bytes=0)
            cache = PrefixCache(model, store)
        with cache.session(tokens) as session:
            assert session.cached_tokens == 3 * BLOCK - 1
            held.append([c.keys[..., : 3 * BLOCK - 1, :] for c in session.prompt_cache])
    for hot, cold in zip(*held, strict=True):
        assert mx.array_equal(hot, cold).item()
