"""Train the recall model and write its weights: about four minutes on two CPU cores.

Run as `PYTHONPATH=tests python -m kit.recall.train [seconds]`. From random weights the two heads
need far longer to find each other, so training starts from a sketch: a bias that makes layer 0 look
at the previous token, and a layer 1 that writes out the token it looks at.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten

from kit.recall.model import WEIGHTS, build, draw

FIRST_PAIRS, LAST_PAIRS = 6, 180
TOKENS_PER_STEP = 1024
RATE = 3e-3


def sketch(model: Any, rng: np.random.Generator) -> None:
    """Overwrite the biases of layer 0 and the value path of layer 1, in place."""
    dim, half, used, strength = 64, 32, 8, 4.0
    angles = 10000.0 ** (-np.arange(used) / half)
    key, query = np.zeros(dim, np.float32), np.zeros(dim, np.float32)
    key[:used] = strength
    query[:used] = strength * np.cos(angles)
    query[half : half + used] = -strength * np.sin(angles)
    first, last = (layer.self_attn for layer in model.model.layers)
    first.k_proj.bias = mx.array(key)
    first.q_proj.bias = mx.array(np.tile(query, 2))
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0].astype(np.float32)
    last.v_proj.weight = mx.array(turn)
    last.o_proj.weight = mx.array(np.concatenate([turn.T, turn.T], axis=1) / 2)


def answer_loss(model: Any, tokens: mx.array, first: int) -> mx.array:
    """Mean cross entropy of the answers: every second token from `first` on."""
    logits = model(tokens[:, :-1])[:, first - 1 :: 2]
    return nn.losses.cross_entropy(logits, tokens[:, first::2], reduction="mean")


def train(seconds: float, seed: int = 0) -> Any:
    """Return a model trained for so long, with longer contexts as its loss falls."""
    mx.random.seed(seed)
    rng = np.random.default_rng(seed)
    model = build()
    sketch(model, rng)
    mx.eval(model.parameters())
    optimizer = optim.AdamW(learning_rate=RATE, weight_decay=0.0, betas=[0.9, 0.98])
    loss_and_grad = nn.value_and_grad(model, answer_loss)
    pairs, smooth, step = FIRST_PAIRS, 4.0, 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        optimizer.learning_rate = mx.array(RATE * min(1.0, step / 50, 3 * (1 - elapsed / seconds)))
        questions = min(pairs, 64)
        batch = max(4, TOKENS_PER_STEP // (2 * pairs + 2 * questions))
        drawn = draw(rng, batch, pairs, questions)
        tokens = np.concatenate([drawn.contexts, drawn.questions.reshape(batch, -1)], axis=1)
        loss, grads = loss_and_grad(model, mx.array(tokens), 2 * pairs + 1)
        grads, _ = optim.clip_grad_norm(grads, 1.0)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state, loss)
        smooth = 0.95 * smooth + 0.05 * loss.item()
        step += 1
        if step % 100 == 0:
            print(f"{elapsed:4.0f} s, step {step}, {pairs} pairs, loss {smooth:.4f}", flush=True)
        if smooth < 0.3 and pairs < LAST_PAIRS:
            pairs, smooth = min(LAST_PAIRS, pairs * 3 // 2), 0.6
    return model


def main() -> int:
    """Train and save; prints progress."""
    model = train(float(sys.argv[1]) if len(sys.argv) > 1 else 240.0)
    weights = {name: w.astype(mx.float16) for name, w in tree_flatten(model.parameters())}
    WEIGHTS.parent.mkdir(exist_ok=True)
    mx.save_safetensors(str(WEIGHTS), weights)
    print(f"{WEIGHTS.name}: {WEIGHTS.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
