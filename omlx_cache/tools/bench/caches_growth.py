"""Growth policies measured: in an update loop, in a forward pass, and for rotating windows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models import cache as upstream
from mlx_lm.models.llama import Model, ModelArgs

from omlx_cache.kv import Geometric, KVCache, RotatingKVCache

from .caches_probe import MB, Probe, Row, settle

LAYERS, HEADS, DIM = 12, 8, 128
CHUNK, DECODE = 512, 600
WINDOW, WINDOW_CHUNK = 1024, 2048
STEPS_BEFORE, STEPS_AFTER = 8, 8
FORWARD_WINDOW = 512


@dataclass(frozen=True, slots=True)
class Policy:
    """How a cache grows; `room` is the number of tokens that it will hold in the end."""

    name: str
    make: Callable[[int], Any]
    clears: bool = False
    grows: bool = True


POLICIES = (
    Policy("step 256 (mlx-lm)", lambda room: upstream.KVCache()),
    Policy("step 256, allocator cache cleared", lambda room: upstream.KVCache(), clears=True),
    Policy("step 1,024", lambda room: KVCache(step=1024)),
    Policy("geometric 1.25", lambda room: KVCache(growth=Geometric(1.25))),
    Policy("preallocated, hint exact", lambda room: KVCache(max_size=room), grows=False),
    Policy("preallocated, hint 4x too large", lambda room: KVCache(max_size=4 * room), grows=False),
)


def update_loop(tokens: int) -> Iterator[Row]:
    """Prefill in chunks and append one by one, updates alone: the copies' own cost."""
    keys, values = _random(CHUNK, HEADS, DIM), _random(CHUNK, HEADS, DIM)
    for policy in POLICIES:
        caches = [policy.make(tokens + DECODE) for _ in range(LAYERS)]
        probe = Probe()
        for length in [*[CHUNK] * (tokens // CHUNK), *[1] * DECODE]:
            chunk = keys[..., :length, :], values[..., :length, :]
            probe.step(partial(_append, caches, *chunk, clears=policy.clears))
        data = (tokens // CHUNK * CHUNK + DECODE) * LAYERS * 2 * HEADS * DIM * 2 / MB
        figures = {
            "data MB": data,
            "active MB": probe.active_mb,
            "peak MB": probe.peak_mb,
            "with allocator cache MB": probe.footprint_mb,
            "worst step ms": probe.worst_ms,
            "total s": probe.total_s,
        }
        del caches
        yield Row("update loop", tokens, policy.name, figures)


def forward_pass(tokens: int) -> Iterator[Row]:
    """Decode across the growth boundary at `tokens` with a real model, step by step and queued."""
    model = _model()
    for policy in POLICIES:
        if policy.clears:
            continue
        figures: dict[str, float] = {}
        for queued in (False, True):
            caches = _filled(policy, tokens, len(model.layers))
            figures |= _decode(model, caches, queued)
            del caches
        yield Row("forward pass", tokens, policy.name, figures)


WINDOWS: dict[str, Callable[[int], Any]] = {
    "mlx-lm": lambda window: upstream.RotatingKVCache(window, keep=4),
    "window allocated once": lambda window: RotatingKVCache(window, keep=4, capacity=window),
}


def rotating_forward() -> Iterator[Row]:
    """Three chunks as long as the window through a real model, then decode."""
    model = _model()
    for name, make in WINDOWS.items():
        caches = [make(FORWARD_WINDOW) for _ in model.layers]
        prompt = mx.ones((1, FORWARD_WINDOW), mx.int32)
        probe = Probe()

        def forward(inputs: mx.array, caches: list[Any] = caches) -> None:
            mx.eval(model(inputs, cache=caches), [cache.state for cache in caches])

        for _ in range(3):
            probe.step(partial(forward, prompt))
        settle()
        figures = {"prefill peak MB": probe.peak_mb, "retained MB": probe.active_mb}
        probe = Probe()
        for _ in range(32):
            probe.step(partial(forward, prompt[:, :1]))
        figures |= {"decode spike MB": probe.peak_mb, "worst decode step ms": probe.worst_ms}
        del caches, forward
        yield Row("rotating, forward pass", 3 * FORWARD_WINDOW, name, figures)


def rotating(tokens: int) -> Iterator[Row]:
    """A long prefill in chunks of mlx-lm's default size through a window, then decode."""
    for start in ("long prompt", "short prompt"):
        for name, make in WINDOWS.items():
            caches = [make(WINDOW) for _ in range(LAYERS)]
            lengths = (
                [WINDOW_CHUNK] * (tokens // WINDOW_CHUNK)
                if start == "long prompt"
                else [WINDOW // 4 + 1]
            )
            yield Row("rotating", tokens, f"{name}, {start}", _through_window(caches, lengths))
            del caches


def _through_window(caches: list[Any], lengths: list[int]) -> dict[str, float]:
    probe = Probe()
    for length in lengths:
        keys, values = _random(length, HEADS, DIM), _random(length, HEADS, DIM)
        probe.step(partial(_layer_by_layer, caches, keys, values))
    del keys, values
    settle()
    figures = {"prefill peak MB": probe.peak_mb, "retained MB": probe.active_mb}
    keys, values = _random(1, HEADS, DIM), _random(1, HEADS, DIM)
    probe = Probe()
    for _ in range(WINDOW):
        probe.step(partial(_append, caches, keys, values))
    return figures | {
        "decode spike MB": probe.peak_mb,
        "worst decode step ms": probe.worst_ms,
        "decode total s": probe.total_s,
    }


def _append(caches: list[Any], keys: mx.array, values: mx.array, *, clears: bool = False) -> None:
    for cache in caches:
        cache.update_and_fetch(keys, values)
    mx.eval([cache.state for cache in caches])
    if clears:
        mx.clear_cache()


def _layer_by_layer(caches: list[Any], keys: mx.array, values: mx.array) -> None:
    """Evaluate as a forward pass does: a layer's result is gone before the next one's."""
    for cache in caches:
        mx.eval(cache.update_and_fetch(keys, values), cache.state)


def _random(length: int, heads: int, dim: int) -> mx.array:
    made = mx.random.normal((1, heads, length, dim)).astype(mx.float16)
    mx.eval(made)
    return made


def _model() -> Any:
    model = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=512,
            num_hidden_layers=4,
            intermediate_size=512,
            num_attention_heads=8,
            num_key_value_heads=8,
            head_dim=64,
            rms_norm_eps=1e-5,
            vocab_size=256,
        )
    )
    model.set_dtype(mx.float16)
    mx.eval(model.parameters())
    return model


def _filled(policy: Policy, tokens: int, layers: int) -> list[Any]:
    """Return caches with about `tokens` tokens, STEPS_BEFORE short of where they grow next."""
    caches = [policy.make(tokens + STEPS_AFTER) for _ in range(layers)]
    keys, values = _random(CHUNK, 8, 64), _random(CHUNK, 8, 64)
    wanted = tokens - STEPS_BEFORE
    while (missing := wanted - caches[0].offset) > 0:
        length = min(CHUNK, missing)
        _append(caches, keys[..., :length, :], values[..., :length, :])
        if policy.grows:
            wanted = max(wanted, caches[0].keys.shape[2] - STEPS_BEFORE)
    return caches


def _decode(model: Any, caches: list[Any], queued: bool) -> dict[str, float]:
    token = mx.array([[1]])
    mx.eval(token)
    held = sum(cache.nbytes for cache in caches) / MB
    probe = Probe()
    pending: list[mx.array] = []

    def step() -> None:
        logits = model(token, cache=caches)[:, -1].argmax(-1)
        mx.async_eval(logits)
        pending.append(logits)
        # generate_step queues a step before it waits for the one before.
        if not queued or len(pending) > 1:
            mx.eval(pending.pop(0))

    for _ in range(STEPS_BEFORE + STEPS_AFTER):
        probe.step(step)
    mx.eval(pending)
    if queued:
        return {"queued spike MB": probe.peak_mb, "queued total s": probe.total_s}
    return {
        "cache MB": held,
        "spike MB": probe.peak_mb,
        "worst step ms": probe.worst_ms,
        "median step ms": probe.median_ms,
        "total s": probe.total_s,
    }
