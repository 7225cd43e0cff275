"""Check the cache inside mlx-vlm's own server; exits with 1 for a failure.

Where it loads a model and generates: `server/app.py`, `server/generation.py`. `check_servers.py`
runs its own command. Run by `make test-peers`.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from checking import run_checks
from mlx_vlm.apc import APCManager
from mlx_vlm.server.generation import GenerationArguments, ResponseGenerator
from mlx_vlm.server.runtime import runtime
from vlm.saved import save

from omlx_cache import BlockStore, CacheSettings
from omlx_cache.integrations.mlx_vlm import ApcManager, install, launch

# The package's attribute of that name is the FastAPI object.
app: Any = import_module("mlx_vlm.server.app")
Said = tuple[list[int], int]


def open_store(directory: Path) -> BlockStore:
    return BlockStore(
        CacheSettings(
            cold_dir=directory,
            hot_bytes="64MiB",
            cold_bytes="256MiB",
            min_free_bytes=0,
            socket="off",
            block_size=16,
        )
    )


def chat(*turns: str) -> str:
    roles = ("user", "assistant")
    said = "".join(
        f"<|im_start|>{roles[i % 2]}\n{turn}<|im_end|>\n" for i, turn in enumerate(turns)
    )
    return f"{said}<|im_start|>assistant\n"


def say(generator: Any, prompt: str, count: int = 8) -> Said:
    arguments = GenerationArguments(max_tokens=count, temperature=0.0)
    _context, tokens = generator.generate(prompt, args=arguments)
    said = list(tokens)
    return [item.token for item in said], max(item.cached_tokens for item in said)


QUESTION = "What a long question this is, about nothing much, and yet it goes on and on."
PROMPTS = (
    chat(QUESTION),
    chat(QUESTION, "So it seems", "Indeed, and what then?"),
    chat(QUESTION, "Not at all", "Why?"),
)


def alone(path: Path, manager: Any = None) -> list[Said]:
    """Return what a generator says with its own cache, or without one."""
    generator = ResponseGenerator(str(path), apc_manager=manager)
    try:
        generator.wait_until_ready()
        return [say(generator, prompt) for prompt in PROMPTS]
    finally:
        generator.stop_and_join()


def what_the_server_loads_uses_the_store(folder: Path) -> None:
    """Two models in turns, an abort, a restart: every answer is the one without a cache."""
    paths = [save(folder / f"model-{seed}", "hybrid", seed) for seed in (0, 1)]
    wanted = [alone(path) for path in paths]
    theirs = alone(paths[0], APCManager(num_blocks=4096))
    stores: list[BlockStore] = []
    launch.place(lambda: stores[-1])
    hits = []
    for _process in range(2):
        stores.append(open_store(folder / "cache"))
        with stores[-1]:
            for path, answers in zip(paths, wanted, strict=True):
                app.get_cached_model(str(path))
                manager = runtime.apc_manager
                assert isinstance(manager, ApcManager)
                generator = runtime.response_generator
                _context, left = generator.generate(
                    chat(QUESTION * 20), args=GenerationArguments(max_tokens=200)
                )
                left.close()
                said = [say(generator, prompt) for prompt in PROMPTS]
                assert [tokens for tokens, _hit in said] == [t for t, _hit in answers], said
                hits.append([hit for _tokens, hit in said])
                assert manager.stats_snapshot()["hits"]
            app.unload_model_sync()
    own = [hit for _tokens, hit in theirs]
    for number, mine in enumerate(hits):
        assert all(a >= b for a, b in zip(mine, own, strict=True)), (number, mine, own)
    assert min(hits[2] + hits[3]) > 0, f"restarted: {hits}"
    print(f"       server, hybrid: APC {own}, here {hits[0]}, restarted {hits[2]}")


def a_response_generator_that_exists_gets_it(folder: Path) -> None:
    path = save(folder / "installed", "windows", 3)
    wanted = alone(path)
    with open_store(folder / "installed-cache") as store:
        generator = ResponseGenerator(str(path))
        install(generator, store)
        said = [say(generator, prompt) for prompt in (*PROMPTS, PROMPTS[0])]
        generator.stop_and_join()
        assert [tokens for tokens, _hit in said[:3]] == [tokens for tokens, _hit in wanted]
        assert said[1][1], said


CHECKS: tuple[Callable[[Path], None], ...] = (
    what_the_server_loads_uses_the_store,
    a_response_generator_that_exists_gets_it,
)


def in_a_folder(check: Callable[[Path], None]) -> Callable[[], None]:
    """Return a check that has an empty folder for as long as it runs."""

    @functools.wraps(check)
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))

    return run


def main() -> int:
    """Run every check and print one line for each."""
    return run_checks("mlx-vlm's server, on a store", map(in_a_folder, CHECKS))


if __name__ == "__main__":
    sys.exit(main())
