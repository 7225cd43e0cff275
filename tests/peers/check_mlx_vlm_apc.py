"""Check the cache in the place of mlx-vlm's APC, in its real generator; exits with 1 for a failure.

Each scenario is asked three times: of the generator without a cache, with its own APC, and with a
store; then of a new store on the same directory. Tokens are those without a cache, and never fewer
of them are restored than by APC. Run by `make test-peers`.
"""

# ruff: noqa: E402 -- mlx-lm, which nothing here needs, is blocked before the first import.
from __future__ import annotations

import importlib.metadata
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.modules["mlx_lm"] = None  # type: ignore[assignment]

from checking import hidden, run_checks
from mlx_vlm import apc
from vlm.drive import Asked, VlmAnswer, Worker
from vlm.models import build
from vlm.scenarios import SCENARIOS, pictures, text

from omlx_cache import BlockStore, CacheSettings
from omlx_cache.integrations.host_server import MLX_VLM_GENERATOR
from omlx_cache.integrations.mlx_vlm import ApcBatchGenerator, ApcManager, install
from omlx_cache.integrations.mlx_vlm.launch import around

TURBO = {"kv_bits": 4, "kv_quant_scheme": "turboquant", "quantized_kv_start": 0}
UNIFORM = {"kv_bits": 8, "kv_group_size": 32, "kv_quant_scheme": "uniform"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "windows": ("windows", {}),
    "hybrid": ("hybrid", {}),
    "positions of three kinds": ("mrope", {}),
    "turboquant": ("dense", TURBO),
    "hybrid, turboquant": ("hybrid", TURBO),
    "uniform 8 bits": ("dense", UNIFORM),
}
PACKED = ("turns", "branches", "together")
"""Of packed caches these; the rest takes another way by its rows, not by their bits."""


def open_store(directory: str) -> BlockStore:
    return BlockStore(
        CacheSettings(
            cold_dir=Path(directory),
            hot_bytes="64MiB",
            cold_bytes="256MiB",
            min_free_bytes=0,
            socket="off",
            block_size=16,
        )
    )


def ours(model: Any, store: BlockStore, **options: Any) -> Worker:
    manager = ApcManager(store, whole=lambda inner: around(model, inner))
    return Worker(model, manager, ApcBatchGenerator, **options)


def same_tokens(got: Sequence[VlmAnswer], wanted: Sequence[VlmAnswer], what: str) -> None:
    differ = [i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a.tokens != b.tokens]
    assert not differ, f"{what}: answers {differ} differ"


def no_less(mine: Sequence[VlmAnswer], theirs: Sequence[VlmAnswer], what: str) -> None:
    pairs = [(a.cached, b.cached) for a, b in zip(mine, theirs, strict=True)]
    assert all(a >= b for a, b in pairs), f"{what}: {pairs}"


def their_own(model: Any, scenario: Any, options: dict[str, Any]) -> list[VlmAnswer] | None:
    """Return what APC answers, None where it ends in an error of its own."""
    try:
        answers: list[VlmAnswer] = scenario(
            Worker(model, apc.APCManager(num_blocks=4096), **options)
        )
    except RuntimeError:
        return None
    return answers


def every_kind_in_every_scenario() -> None:
    for kind, (name, options) in KINDS.items():
        model = build(name)
        for title, scenario in SCENARIOS.items():
            if options and title not in PACKED:
                continue
            what = f"{kind}, {title}"
            wanted = scenario(Worker(model, **options))
            theirs = their_own(model, scenario, options)
            with tempfile.TemporaryDirectory() as directory:
                with open_store(directory) as store:
                    mine = scenario(ours(model, store, **options))
                with open_store(directory) as store:
                    again = scenario(ours(model, store, **options))
            same_tokens(mine, wanted, what)
            same_tokens(again, wanted, f"{what}, restarted")
            if theirs is not None:
                no_less(mine, theirs, what)
                no_less(again, theirs, f"{what}, restarted")
            right = theirs is not None and [a.tokens for a in theirs] == [a.tokens for a in wanted]
            hits = ["-" if a is None else sum(x.cached for x in a) for a in (theirs, mine, again)]
            print(
                f"       {what}: APC {hits[0]}{'' if right else ' (other tokens or an error)'},",
                end="",
            )
            print(f" here {hits[1]}, restarted {hits[2]}")


def pictures_are_apart() -> None:
    model = build("images")
    wanted = pictures(Worker(model))
    theirs = pictures(Worker(model, apc.APCManager(num_blocks=4096)))
    assert wanted[2].tokens != wanted[3].tokens, "the pictures do not show in the answers"
    with tempfile.TemporaryDirectory() as directory:
        with open_store(directory) as store:
            mine = pictures(ours(model, store))
        with open_store(directory) as store:
            again = pictures(ours(model, store))
    same_tokens(mine, wanted, "pictures")
    same_tokens(again, wanted, "pictures, restarted")
    no_less(mine, theirs, "pictures")
    assert mine[0].cached == mine[1].cached == 0, "another picture, the same words"
    assert mine[2].cached >= 64, "the same picture again"
    assert mine[4].cached == 0, "another tenant"
    assert min(again[0].cached, again[1].cached) > 0, "after a restart"


def pictures_need_the_whole_model_to_outlive_a_process() -> None:
    """A language model says nothing of the weights that saw the picture."""
    model = build("images")
    with tempfile.TemporaryDirectory() as directory:
        for _process in range(2):
            with open_store(directory) as store:
                manager = ApcManager(store)
                answers = pictures(Worker(model, manager, ApcBatchGenerator))
                assert answers[0].cached == 0, "kept for another process"
                assert answers[2].cached, "kept for this process"


def a_generator_that_exists_gets_it() -> None:
    model = build("dense")
    worker = Worker(model)
    with tempfile.TemporaryDirectory() as directory, open_store(directory) as store:
        for wanted in (0, 99):
            generator = worker.generator()
            install(generator, store, model=model)
            worker.insert(generator, Asked(text(100)))
            cached = []
            while generator.has_work:
                cached += [prompt.cached_tokens for prompt in generator.next()[0]]
            assert cached == [wanted], cached


def what_an_aborted_prompt_had_computed_is_kept() -> None:
    """Of one request, and of each of two that were computed together."""
    for kind in ("dense", "windows", "hybrid", "turboquant"):
        name, options = KINDS[kind]
        model = build(name)
        long, other = text(300), text(290, 5)
        wanted = [Worker(model, **options).say(prompt) for prompt in (long, other)]
        # Packed prompts are computed one after the other.
        for together in (False,) if options else (False, True):
            with tempfile.TemporaryDirectory() as directory, open_store(directory) as store:
                worker = ours(model, store, **options)
                generator = worker.generator()
                prompts = [long, other] if together else [long]
                uids = [worker.insert(generator, Asked(prompt)) for prompt in prompts]
                for _chunk in range(3):
                    generator.next()
                assert all(generator.remove(uid) for uid in uids)
                generator.close()
                got = [worker.say(prompt) for prompt in prompts]
                same_tokens(got, wanted[: len(got)], f"{kind}, aborted")
                assert min(answer.cached for answer in got) >= 118, f"{kind}: {got}"


def the_next_turn_restores_the_answer_too() -> None:
    """Also of rows of one batch, which end one after the other."""
    for kind in ("dense", "windows", "hybrid", "turboquant"):
        name, options = KINDS[kind]
        model = build(name)
        asked = Asked(text(100), generate=6), Asked(text(90, 3), generate=14)
        with tempfile.TemporaryDirectory() as directory, open_store(directory) as store:
            worker = ours(model, store, **options)
            said = worker.ask(*asked)
            for request, answer in zip(asked, said, strict=True):
                known = [*request.tokens, *answer.tokens]
                got = worker.say(known + text(20, 9))
                assert got.cached == len(known), f"{kind}: {got.cached} of {len(known)}"
                plain = Worker(model, **options).say(known + text(20, 9))
                same_tokens([got], [plain], f"{kind}, next turn")


def a_generator_that_lacks_a_name_answers_with_its_own_cache() -> None:
    model = build("dense")
    wanted, own = Worker(model).say(text(100)), apc.APCManager(num_blocks=4096)
    with tempfile.TemporaryDirectory() as directory, open_store(directory) as store:
        manager = ApcManager(store, own=lambda: own)
        worker = Worker(model, manager, ApcBatchGenerator)
        for number, name in enumerate(MLX_VLM_GENERATOR):
            with hidden(name):
                same_tokens([got := worker.say(text(100))], [wanted], name.attribute)
            assert (got.cached > 0) == (number > 0), "its own cache restores"
        assert not store.requests.records()


def the_stores_log_has_the_requests() -> None:
    model = build("hybrid")
    with tempfile.TemporaryDirectory() as directory, open_store(directory) as store:
        worker = ours(model, store)
        worker.ask(Asked(text(100)), Asked(text(80, 3), generate=5))
        worker.say(text(120))
        records = store.requests.records()
        computed = sorted(record.computed_tokens for record in records)
        assert computed == [21, 80, 100], computed
        assert sorted(record.generated_tokens or 0 for record in records) == [5, 12, 12]
        assert all(record.total_seconds for record in records)


CHECKS: tuple[Callable[[], None], ...] = (
    every_kind_in_every_scenario,
    pictures_are_apart,
    pictures_need_the_whole_model_to_outlive_a_process,
    a_generator_that_exists_gets_it,
    what_an_aborted_prompt_had_computed_is_kept,
    the_next_turn_restores_the_answer_too,
    a_generator_that_lacks_a_name_answers_with_its_own_cache,
    the_stores_log_has_the_requests,
)


def main() -> int:
    """Run every check and print one line for each."""
    version = importlib.metadata.version("mlx-vlm")
    return run_checks(f"mlx-vlm {version}: its generator, on a store", CHECKS)


if __name__ == "__main__":
    sys.exit(main())
