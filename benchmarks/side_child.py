"""One process of the side-by-side bench: a turn of a conversation with one system.

    python -m benchmarks.side_child SYSTEM PHASE TOKENS DIRECTORY

Prints one JSON object. Only the suffix is computed by the model: the KV of the turn before is
drawn, the same in every process, so that 32,768 tokens cost no prefill.
"""

import gc
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models import qwen3
from mlx_lm.models.cache import make_prompt_cache

from benchmarks.side_systems import SYSTEMS, System
from omlx_cache.arrays.mlxio import host_views

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
