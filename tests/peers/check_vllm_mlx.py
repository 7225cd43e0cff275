"""Check this cache in the real vllm-mlx: its scheduler, driven through its own calls, gives the
tokens that it gives without any cache, and restores no less than with its own.

`make test-peers` installs vllm-mlx and the mlx-lm that it asks for in a folder of their own. Exits
with 1 and the names of what differs.
"""

from __future__ import annotations

import importlib.metadata
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from vllm_mlx.scheduler import Scheduler

from omlx_cache.integrations.host_server import VLLM_SCHEDULER
from omlx_cache.integrations.vllm_mlx import TieredPrefixCache, install, launch

sys.path.insert(0, str(Path(__file__).parents[1]))
from checking import hidden, run_checks
from driving import PeerAnswer, abort, loaded, prompt_of, store_in
from vllm_driving import (
    Scenario,
    answers,
    ask,
    conversation,
    none,
    ours,
    request,
    scheduler,
    theirs,
)

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("qwen3", {}),
    "hybrid": ("qwen3_next", {}),
    "windowed": ("gemma3_text", {}),
    "recurrent": ("mamba2", {}),
    "bounded": ("qwen3", {"max_kv_size": 128}),
    "8 bits": ("llama", {"kv_cache_quantization": True}),
    "4 bits": ("llama", {"kv_cache_quantization": True, "kv_cache_quantization_bits": 4}),
}
LOSSY = ("8 bits", "4 bits")
"""Kept as what the server's flag asks for: other tokens than without a cache, with its own too."""
FOLDER = Path(tempfile.mkdtemp())


def branches(serving: Any) -> list[PeerAnswer]:
    """Chats with one system prompt, which the engine knows the length of; then the first again."""
    system = prompt_of(600)
    chats = [[*system, *prompt_of(50, salt)] for salt in (1, 2, 3, 1)]
    return [answers(serving, [request(chat, boundary=600)])[0] for chat in chats]


def together(serving: Any) -> list[PeerAnswer]:
    """Requests of different lengths in one batch, and then their next turns."""
    return _two_turns(lambda prompts: answers(serving, [request(one) for one in prompts]))


def one_by_one(serving: Any) -> list[PeerAnswer]:
    """The same requests, each alone."""
    return _two_turns(lambda prompts: [ask(serving, one) for one in prompts])


def _two_turns(serve: Callable[[list[list[int]]], list[PeerAnswer]]) -> list[PeerAnswer]:
    prompts = [prompt_of(120 + 90 * place, place) for place in range(4)]
    first = serve(prompts)
    longer = [
        [*prompt, *answer.tokens, *prompt_of(30, 9)]
        for prompt, answer in zip(prompts, first, strict=True)
    ]
    return [*first, *serve(longer)]


def aborted(serving: Any) -> list[PeerAnswer]:
    """A client goes away while its prompt is computed, another while it is answered."""
    prompt = prompt_of(1000)
    for steps, asked in ((6, request(prompt)), (30, request(prompt_of(300, 4), 200))):
        abort(serving, asked, steps)
        serving.remove_finished_request(asked.request_id)
    return [ask(serving, prompt), ask(serving, prompt_of(300, 4))]


def compared(name: str, scenario: Scenario, **options: Any) -> list[PeerAnswer]:
    """Run a scenario without a cache, with vllm-mlx's own and with this one; return the last."""
    family, own = MODELS[name]
    model, options = loaded(FOLDER, family), {**own, **options}
    # mlx-lm 0.31.3 computes a batch's padding into the states of rows.
    alone = one_by_one if scenario is together else scenario
    plain = alone(none(model, **options))
    peer = scenario(theirs(model, **options))
    with ours(model, **options) as serving:
        given = scenario(serving)
    pairs = zip(plain, given, strict=True)
    differing = [place for place, pair in enumerate(pairs) if not same(*pair)]
    if name not in LOSSY:
        assert not differing, (name, "other tokens than without a cache", differing)
    assert name != "8 bits" or all(map(same, peer, given)), (name, "other tokens than its own")
    hits = [(answer.cached, other.cached) for answer, other in zip(given, peer, strict=True)]
    assert all(mine >= other for mine, other in hits), (name, "fewer hit tokens", hits)
    print(f"       {name:10} {scenario.__name__:13} ours, theirs: {hits}")
    return given


def same(one: PeerAnswer, other: PeerAnswer) -> bool:
    return one.tokens == other.tokens


SCENARIOS: dict[Scenario, tuple[str, ...]] = {
    conversation: tuple(MODELS),
    branches: ("dense", "hybrid", "windowed", "recurrent", "8 bits"),
    together: ("dense", "hybrid", "windowed", "recurrent"),
    aborted: ("dense", "hybrid", "windowed"),
}


def scenarios_restore_no_less_and_give_the_same_tokens() -> None:
    for scenario, names in SCENARIOS.items():
        for name in names:
            options = {"prefill_step_size": 256} if scenario is aborted else {}
            given = [answer.cached for answer in compared(name, scenario, **options)]
            assert scenario is not conversation or all(given[1:]), name
            assert scenario is not branches or given == [0, 600, 600, 649], name


def what_is_restored_after_a_batch_is_what_a_request_alone_holds() -> None:
    # Rows that join a batch before their first token, beside one that is longer and is restored.
    for family in ("llama", "qwen3_next", "gemma3_text", "mamba2"):
        model, base = loaded(FOLDER, family), prompt_of(900, 1)
        prompts = [[*base, *prompt_of(1800, 2)]]
        prompts += [prompt_of(1100 + 50 * place, 20 + place) for place in range(3)]
        with ours(model, prefill_step_size=256) as serving:
            ask(serving, base)
            asked = [request(prompt) for prompt in prompts]
            for one in asked:
                serving.add_request(one)
                for _step in range(2):
                    serving.step()
            answers(serving, [])
            for one in asked:
                serving.remove_finished_request(one.request_id)
            for prompt in prompts:
                longer = [*prompt, *prompt_of(20, 7)]
                given = ask(serving, longer)
                assert given.cached >= len(prompt) - 1, (family, given.cached, len(prompt))
                assert same(given, ask(none(model), longer)), (family, len(prompt))


def a_new_store_restores_what_another_has_stored() -> None:
    for name, (family, options) in MODELS.items():
        model = loaded(FOLDER, family)
        directory = Path(tempfile.mkdtemp(dir=FOLDER))
        with ours(model, directory, **options) as serving:
            conversation(serving)
        plain = conversation(none(model, **options))
        with ours(model, directory, **options) as serving:
            given = conversation(serving)
        saved = theirs(model, **options)
        conversation(saved)
        saved.save_cache_to_disk(str(directory / "theirs"))
        peer = theirs(model, **options)
        peer.load_cache_from_disk(str(directory / "theirs"))
        own = [answer.cached for answer in conversation(peer)]
        hits = [answer.prompt - answer.cached for answer in given]
        if name not in LOSSY:
            assert all(map(same, plain, given)), name
            assert hits == [1, 1, 1], (name, given)
        assert hits[0] == 1, (name, given)
        both = [(answer.cached, other) for answer, other in zip(given, own, strict=True)]
        assert all(mine >= other for mine, other in both), (name, both)
        print(f"       {name:10} after a restart, its own with its files: {both}")


def the_servers_calls_for_upkeep_are_answered() -> None:
    model = loaded(FOLDER, "qwen3")
    with ours(model) as serving:
        conversation(serving)
        stats = serving.get_stats()["memory_aware_cache"]
        assert stats["hits"] == 2
        assert stats["misses"] == 1
        assert stats["current_memory_mb"] > 0
        assert set(stats) == set(theirs(model).get_stats()["memory_aware_cache"])
        assert serving.save_cache_to_disk("nowhere")
        assert serving.load_cache_from_disk("nowhere") > 0
        assert not Path("nowhere").exists()
        assert serving.clear_runtime_caches()["memory_aware_cache"]
        assert serving.memory_aware_cache._current_memory == 0
        # What the disk has is still there.
        assert conversation(serving)[0].cached == 399
        serving.deep_reset()
        assert conversation(serving)[0].cached == 399


def its_own_command_gets_this_cache_and_its_ssd_tier_stays_closed() -> None:
    model = loaded(FOLDER, "qwen3")
    own = Scheduler.__init__
    with store_in(Path(tempfile.mkdtemp(dir=FOLDER))) as store:
        try:
            launch.place(lambda: store)
            directory = Path(tempfile.mkdtemp(dir=FOLDER))
            serving = scheduler(model, ssd_cache_dir=str(directory), use_paged_cache=True)
            assert isinstance(serving.memory_aware_cache, TieredPrefixCache)
            serving.ensure_ssd_tier()
            assert serving._ssd_tier is None
            assert conversation(serving)[1].cached
            assert scheduler(model, enable_prefix_cache=False).memory_aware_cache is None
        finally:
            Scheduler.__init__ = own


def a_scheduler_that_lacks_a_name_answers_with_its_own_cache() -> None:
    model, prompt = loaded(FOLDER, "qwen3"), prompt_of(100)
    plain = ask(none(model), prompt)
    with store_in(Path(tempfile.mkdtemp(dir=FOLDER))) as store:
        for name in VLLM_SCHEDULER:
            serving = scheduler(model)
            with hidden(name):
                assert install(serving, store) is None, name
            assert not isinstance(serving.memory_aware_cache, TieredPrefixCache)
            assert same(ask(serving, prompt), plain), name


CHECKS: tuple[Callable[[], None], ...] = (
    scenarios_restore_no_less_and_give_the_same_tokens,
    what_is_restored_after_a_batch_is_what_a_request_alone_holds,
    a_new_store_restores_what_another_has_stored,
    the_servers_calls_for_upkeep_are_answered,
    its_own_command_gets_this_cache_and_its_ssd_tier_stays_closed,
    a_scheduler_that_lacks_a_name_answers_with_its_own_cache,
)


def main() -> int:
    """Run every check, or those that are named, and print one line for each."""
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("vllm-mlx", "mlx-lm"))
    named = [check for check in CHECKS if check.__name__ in sys.argv[1:]]
    return run_checks(f"{', '.join(versions)}, mlx {mx.__version__}", named or CHECKS)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    sys.exit(main())
