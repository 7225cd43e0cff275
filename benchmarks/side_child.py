"""One process of the side-by-side bench: a turn of a conversation with one system.

    python -m benchmarks.side_child SYSTEM PHASE TOKENS DIRECTORY

Prints one JSON object. Only the suffix is computed by the model: the KV of the turn before is
drawn, the same in every process, so that 32,768 tokens cost no prefill. mlx-vlm is imported when it
is used: it is in an environment of its own, or not there.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3
from mlx_lm.models.cache import (
    LRUPromptCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)

from omlx_cache.arrays.mlxio import host_views
from omlx_cache.prefix import PrefixCache
from omlx_cache.session import Session
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore

SHAPE: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": 512,
    "max_position_embeddings": 1 << 20,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
SUFFIX = 16
CHUNK = 2048
SEED = 12


FLUSH_SECONDS = 600.0
GROWTH = 256
ROOM = 4 << 30
"""More than any length needs, in memory and on the disk."""


class System:
    """Keeps one conversation, here nothing of it: everything is computed. `fresh`, `keep`, `close`
    in the process that computed a turn; then `resume` in it or in the next one."""

    def __init__(self, model: Any, directory: Path) -> None:
        self._model = model

    def fresh(self, tokens: Sequence[int]) -> list[Any]:
        """Return empty caches for a turn that is about to be computed."""
        return list(make_prompt_cache(self._model))

    def keep(self, tokens: Sequence[int], caches: list[Any]) -> None:
        """Keep the caches of a turn; they are not used by the caller afterwards."""

    def resume(self, tokens: Sequence[int]) -> tuple[list[Any] | None, int]:
        """Return caches that hold a prefix of the tokens, and its length; None for none."""
        return None, 0

    def close(self) -> None:
        """Have on the disk what shall be there, and end."""


class Live(System):
    """The live cache of the turn before, as if nobody had asked in between, with room to grow: the
    limit. It outlives no process."""

    _caches: list[Any] | None = None

    def fresh(self, tokens: Sequence[int]) -> list[Any]:
        caches = super().fresh(tokens)
        for cache in caches:
            cache.step = len(tokens) + GROWTH
        return caches

    def keep(self, tokens: Sequence[int], caches: list[Any]) -> None:
        self._caches = caches

    def resume(self, tokens: Sequence[int]) -> tuple[list[Any] | None, int]:
        caches, self._caches = self._caches, None
        return caches, int(caches[0].offset) if caches else 0


class Ours(System):
    """A store with both tiers."""

    def __init__(self, model: Any, directory: Path) -> None:
        self._ended = ExitStack()
        self._store = self._ended.enter_context(
            BlockStore(
                CacheSettings(
                    cold_dir=directory / "omlx-cache",
                    hot_bytes=ROOM,
                    queue_bytes=ROOM,
                    cold_bytes=ROOM,
                    min_free_bytes=0,
                    hot_cache_only=False,
                    write_policy="through",
                    socket="off",
                )
            )
        )
        self._cache = PrefixCache(model, self._store)
        self._turn = self._ended.enter_context(ExitStack())
        self._session: Session | None = None

    def fresh(self, tokens: Sequence[int]) -> list[Any]:
        self._session = self._turn.enter_context(self._cache.session(tokens))
        return self._session.prompt_cache

    def keep(self, tokens: Sequence[int], caches: list[Any]) -> None:
        if self._session is not None:
            self._session.commit()
        self._session = None
        self._turn.close()
        self._store.flush(FLUSH_SECONDS)

    def resume(self, tokens: Sequence[int]) -> tuple[list[Any] | None, int]:
        session = self._turn.enter_context(self._cache.session(tokens))
        return session.prompt_cache, session.cached_tokens

    def close(self) -> None:
        self._ended.close()


class MlxLm(System):
    """mlx-lm: `LRUPromptCache` in memory, and a file made by `save_prompt_cache`."""

    def __init__(self, model: Any, directory: Path) -> None:
        super().__init__(model, directory)
        self._lru = LRUPromptCache()
        self._file = directory / "mlx-lm.safetensors"

    def keep(self, tokens: Sequence[int], caches: list[Any]) -> None:
        save_prompt_cache(str(self._file), caches)
        self._lru.insert_cache("model", list(tokens), caches)

    def resume(self, tokens: Sequence[int]) -> tuple[list[Any] | None, int]:
        caches, rest = self._lru.fetch_nearest_cache("model", list(tokens))
        if caches is None and self._file.exists():
            loaded: list[Any] = load_prompt_cache(str(self._file))
            return loaded, int(loaded[0].offset)
        return caches, len(tokens) - len(rest)


class MlxVlm(System):
    """mlx-vlm's APC with its own sizes of blocks, through the object that its generation uses."""

    def __init__(self, model: Any, directory: Path) -> None:
        apc: Any = import_module("mlx_vlm.apc")
        self._disk: Any = apc.DiskBlockStore(directory / "mlx-vlm", max_bytes=ROOM)
        self._manager: Any = apc.APCManager(
            num_blocks=65_536, disk=self._disk, overrides={"memory_max_gb": ROOM >> 30}
        )
        self._coordinator: Any = self._manager.coordinator(model)

    def fresh(self, tokens: Sequence[int]) -> list[Any]:
        return list(self._coordinator.fresh_cache())

    def keep(self, tokens: Sequence[int], caches: list[Any]) -> None:
        self._coordinator.commit(caches, list(tokens))
        self._disk.flush()

    def resume(self, tokens: Sequence[int]) -> tuple[list[Any] | None, int]:
        hit: Any = self._coordinator.lookup(
            list(tokens),
            extra_hash=0,
            safe_lookup_min=0,
            suffix_is_text_only=lambda length: True,
            prefix_has_media=lambda length: False,
        )
        if hit is None:
            return None, 0
        caches = self._coordinator.materialize_single(hit, min_capacity_tokens=len(tokens))
        self._coordinator.release_hit(hit)
        return caches, hit["prefix_len"]

    def close(self) -> None:
        self._disk.flush()
        self._manager.close()


SYSTEMS: Mapping[str, Callable[[Any, Path], System]] = {
    "nothing": System,
    "live": Live,
    "omlx-cache": Ours,
    "mlx-lm": MlxLm,
    "mlx-vlm": MlxVlm,
}


def main(arguments: Sequence[str]) -> int:
    """Run one phase and print what it took."""
    system, phase, tokens, directory = arguments
    json.dump(run(system, phase, int(tokens), Path(directory)), sys.stdout)
    return 0


def run(name: str, phase: str, length: int, directory: Path) -> dict[str, Any]:
    """Compute, keep and resume (`turns`), or resume what another process kept (`restart`)."""
    model = small_model()
    tokens = [(7 * i * i + i) % 512 for i in range(length + SUFFIX)]
    _forward(model, tokens[:SUFFIX], make_prompt_cache(model))
    with closing(SYSTEMS[name](model, directory)) as system:
        weights = _settled()
        if phase == "turns":
            caches = system.fresh(tokens[:length])
            _fill(caches, length)
            system.keep(tokens[:length], caches)
            del caches
        kept = _settled() - weights
        return {"kept_bytes": kept, **_resumed(model, system, tokens, weights)}


def small_model() -> Any:
    """Return mlx-lm's Qwen3 with weights that are the same in every process; evaluated."""
    mx.random.seed(SEED)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(SHAPE))
    mx.eval(model.parameters())
    return model


def _fill(caches: list[Any], length: int) -> None:
    """Have caches hold the KV of a turn, as if it had been computed."""
    shape = 1, SHAPE["num_key_value_heads"], length, SHAPE["head_dim"]
    for number, cache in enumerate(caches):
        keys, values = (
            mx.random.normal(shape, key=mx.random.key(2 * number + side)) for side in (0, 1)
        )
        cache.update_and_fetch(keys, values)
        mx.eval(cache.keys, cache.values)


def _settled() -> int:
    """Return the bytes that MLX holds for good."""
    gc.collect()
    mx.clear_cache()
    return int(mx.get_active_memory())


def _resumed(model: Any, system: System, tokens: list[int], weights: int) -> dict[str, Any]:
    """Ask for the next token, and tell how long it took and what it held."""
    mx.reset_peak_memory()
    began, worked = time.perf_counter(), time.process_time()
    caches, cached = system.resume(tokens)
    if caches is None:
        caches = make_prompt_cache(model)
    # What is loaded lazily is read now: the forward pass needs all of it anyway.
    mx.eval([state for cache in caches if cache.keys is not None for state in cache.state])
    restored = time.perf_counter() - began
    for start in range(cached, len(tokens), CHUNK):
        logits = _forward(model, tokens[start : start + CHUNK], caches)
    seconds, processor = time.perf_counter() - began, time.process_time() - worked
    peak = mx.get_peak_memory() - weights
    return {
        "seconds": seconds,
        "restored_seconds": restored,
        "processor_seconds": processor,
        "cached": cached,
        "logits": sha256(host_views([logits])[0].tobytes()).hexdigest()[:16],
        "held_bytes": _settled() - weights,
        "peak_bytes": peak,
    }


def _forward(model: Any, tokens: list[int], caches: list[Any]) -> mx.array:
    """Return what the model says of the next token, computed."""
    logits: mx.array = model(mx.array([tokens]), cache=caches)[0, -1]
    mx.eval(logits)
    return logits


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
