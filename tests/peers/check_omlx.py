"""Check this cache in the real oMLX: its scheduler, driven through its own calls, gives the tokens
that it gives without any cache, and restores no less than with its own.

`make test-peers ARGS=omlx` fetches oMLX at a pinned commit, or takes the copy at OMLX_SOURCE. Exits
with 1 and the names of what differs.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import omlx
from omlx.engine_core import EngineConfig, EngineCore
from omlx.scheduler import SchedulerConfig

from omlx_cache.integrations.omlx import NEEDED, OmlxPrefixCache, install

sys.path.insert(0, str(Path(__file__).parents[1]))
from checking import hidden, run_checks
from driving import Loaded, PeerAnswer, abort, loaded, prompt_of
from omlx_driving import answer_of, answers, ask, finish, ours, request, scheduler, store_in, theirs

FAMILIES = {"dense": "llama", "hybrid": "qwen3_next", "hybrid 2": "qwen3_5", "windowed": "gemma3"}
LENGTHS = {"dense": 400, "hybrid": 2100, "hybrid 2": 2100, "windowed": 600}
"""Prompts as long as a block at least, which oMLX makes larger where it has a directory."""
SHORT = 400
FOLDER = Path(tempfile.mkdtemp())
Script = Callable[[Any, int], list[PeerAnswer]]


def talk(serving: Any, length: int) -> list[PeerAnswer]:
    """Four turns of a chat, three chats that begin like it, and the first prompt again."""
    prompt, given = prompt_of(length), []
    for turn in range(4):
        given.append(ask(serving, prompt))
        prompt = [*prompt, *given[-1].tokens, *prompt_of(30, 5 + turn)]
    chats = [[*prompt_of(length), *prompt_of(50, salt)] for salt in (1, 2, 3)]
    return given + [ask(serving, chat) for chat in (*chats, prompt_of(length))]


def together(serving: Any, length: int) -> list[PeerAnswer]:
    """Four chats in one batch, of different lengths; then their next turns, two of which come
    while others are answered."""
    prompts = [prompt_of(length + 90 * place, place) for place in range(4)]
    first = answers(serving, prompts)
    longer = [
        [*prompt, *answer.tokens, *prompt_of(30, 9)]
        for prompt, answer in zip(prompts, first, strict=True)
    ]
    requests = [request(prompt) for prompt in longer]
    for asked in requests:
        serving.add_request(asked)
        serving.step()
        serving.step()
    finish(serving)
    return [*first, *map(answer_of, requests)]


def aborted(serving: Any, length: int) -> list[PeerAnswer]:
    """Clients that go away: before their prompt is computed, and while it is answered beside
    another; then all are asked."""
    prompts = [prompt_of(length, salt) for salt in (1, 2, 3)]
    beside = request(prompts[0])
    serving.add_request(beside)
    for prompt, steps in zip(prompts[1:], (0, 5), strict=True):
        abort(serving, request(prompt, 200), steps)
    finish(serving)
    return [answer_of(beside), *(ask(serving, prompt) for prompt in prompts)]


def compared(name: str, script: Script, *, disk: bool) -> None:
    """Run a script without a cache, with oMLX's own and with this one."""
    model, length = loaded(FOLDER, FAMILIES[name]), LENGTHS[name] if disk else SHORT
    plain = script(scheduler(model), length)
    with ours(model, disk=disk) as serving:
        given = script(serving, length)
        settled(serving)
    where = f"{name} {script.__name__}"
    assert tokens(given) == tokens(plain), f"{where}: other tokens than without a cache"
    if disk:
        with theirs(model) as peer:
            own = script(peer, length)
        assert restored(given) >= restored(own), f"{where}: {restored(given)} < {restored(own)}"
        print(f"       {where}: {restored(given)} tokens restored, its own cache {restored(own)}")


def tokens(given: Sequence[PeerAnswer]) -> list[tuple[int, ...]]:
    return [answer.tokens for answer in given]


def restored(given: Sequence[PeerAnswer]) -> int:
    return sum(answer.cached for answer in given)


def settled(serving: Any) -> None:
    """Nothing of a request that has ended is kept, and nothing was passed by."""
    cache = serving.block_aware_cache
    assert cache.get_stats_dict()["active_requests"] == 0
    assert not cache._store.stats().requests.skips, cache._store.stats().requests.skips


def scripts_restore_no_less_and_give_the_same_tokens() -> None:
    for name in FAMILIES:
        for script in (talk, together, aborted):
            for disk in (False, True):
                compared(name, script, disk=disk)


def a_new_store_restores_what_another_has_stored() -> None:
    for name, family in FAMILIES.items():
        model, length = loaded(FOLDER, family), LENGTHS[name]
        directory = Path(tempfile.mkdtemp(dir=FOLDER))
        with ours(model, directory, disk=True) as serving:
            talk(serving, length)
        plain = talk(scheduler(model), length)
        with ours(model, directory, disk=True) as serving:
            given = talk(serving, length)
            settled(serving)
        assert tokens(given) == tokens(plain), name
        assert all(answer.cached for answer in given), (name, given)


def the_engine_serves_from_threads_of_its_own() -> None:
    for name, family in FAMILIES.items():
        model, length = loaded(FOLDER, family), LENGTHS[name]
        plain = tokens(talk(scheduler(model), length))
        given = asyncio.run(_talk_to_an_engine(model, length))
        assert tokens(given) == [plain[0], *plain[4:7]], name
        assert restored(given) > 0, name


async def _talk_to_an_engine(model: Loaded, length: int) -> list[PeerAnswer]:
    """Hold the chats of `talk`, all of them at once."""
    config = SchedulerConfig(model_name="a model", paged_cache_block_size=64)
    engine = EngineCore(model.model, model.tokenizer, EngineConfig(scheduler_config=config))
    engine.scheduler._get_stop_tokens = lambda: set()

    async def asked(prompt: list[int]) -> PeerAnswer:
        one = request(prompt)
        uid = await engine.add_request(prompt, one.sampling_params)
        async for output in engine.stream_outputs(uid):
            last = output
        return PeerAnswer(len(prompt), last.cached_tokens, tuple(last.output_token_ids))

    with store_in(Path(tempfile.mkdtemp(dir=FOLDER))) as store:
        install(engine.scheduler, store)
        await engine.start()
        chats = [[*prompt_of(length), *prompt_of(50, salt)] for salt in (1, 2, 3)]
        given = [await asked(prompt_of(length)), *await asyncio.gather(*map(asked, chats))]
        await engine.stop()
        engine.close()
    return given


def the_panels_figures_are_those_of_its_own_cache() -> None:
    model = loaded(FOLDER, FAMILIES["dense"])
    with theirs(model) as peer:
        talk(peer, 400)
        own = peer.get_ssd_cache_stats()
        kind = set(vars(peer.block_aware_cache.get_stats()))
    with ours(model, disk=True) as serving:
        talk(serving, 400)
        stats = serving.get_ssd_cache_stats()
        counted = serving.get_cache_stats()
        assert serving.get_stats()["ssd_cache"] == counted
        assert {name for name in kind if not name.startswith("_")} <= set(counted.to_dict())
        assert stats["cache_rates"]["cumulative"].keys() == own["cache_rates"]["cumulative"].keys()
        assert stats["cache_rates"]["cumulative"]["prefix_hits"] == counted.hits == 7
        assert stats["prefix_cache"]["tokens_saved"] == counted.tokens_saved > 0


def a_scheduler_that_lacks_a_name_answers_with_its_own_cache() -> None:
    model = loaded(FOLDER, FAMILIES["dense"])
    plain = ask(scheduler(model), prompt_of(100)).tokens
    with store_in(Path(tempfile.mkdtemp(dir=FOLDER))) as store, theirs(model) as serving:
        for name in NEEDED:
            with hidden(name):
                assert install(serving, store) is None, name
        assert ask(serving, prompt_of(100)).tokens == plain


def recovery_and_a_reset_keep_what_is_stored() -> None:
    model = loaded(FOLDER, FAMILIES["hybrid"])
    with ours(model, disk=False) as serving:
        plain = ask(serving, prompt_of(400))
        serving._recover_from_cache_error()
        again = ask(serving, prompt_of(400))
        serving.reset()
        last = ask(serving, prompt_of(400))
        assert plain.tokens == again.tokens == last.tokens
        assert again.cached == last.cached == 384
        cache = serving.block_aware_cache
        serving.deep_reset()
        assert serving.block_aware_cache is None
        assert isinstance(cache, OmlxPrefixCache)


CHECKS: tuple[Callable[[], None], ...] = (
    scripts_restore_no_less_and_give_the_same_tokens,
    a_new_store_restores_what_another_has_stored,
    the_engine_serves_from_threads_of_its_own,
    the_panels_figures_are_those_of_its_own_cache,
    a_scheduler_that_lacks_a_name_answers_with_its_own_cache,
    recovery_and_a_reset_keep_what_is_stored,
)


def main() -> int:
    """Run every check, or those that are named, and print one line for each."""
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("mlx-lm", "mlx-vlm"))
    named = [check for check in CHECKS if check.__name__ in sys.argv[1:]]
    title = f"oMLX {omlx.__version__}, {', '.join(versions)}, mlx {mx.__version__}"
    return run_checks(title, named or CHECKS)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    sys.exit(main())
