"""Where the time of a warm turn goes, from its request's last byte to its first token.

    python -m benchmarks.warm_turn [TOKENS ...]

A server in this process, with random weights and no attention: the host is measured. Prints the
medians of each span in milliseconds, without the time of others in it, and of the rest by the span
that it comes before. `copy` is one copy of the restored bytes, and `host` is the total without
that, the render and the forward.
"""

import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from omlx_cache_daemon.cli import main

SIZES, TURNS, MESSAGE_WORDS, NEW_WORDS = (8_000, 32_000, 128_000), 11, 400, 12
# An answer that ends with its first token is stored before that is sent.
PORT, START_SECONDS, IDLE_SECONDS, ANSWER_TOKENS = 18_129, 10.0, 0.5, 8
SPANS = {
    "json": [("json", "loads"), ("omlx_cache.integrations.mlx_lm.responses", "length_of")],
    "render": [("mlx_lm.tokenizer_utils:TokenizerWrapper", "apply_chat_template")],
    "tokenise": [
        ("mlx_lm.server:ResponseGenerator", "_tokenize"),
        ("transformers:PreTrainedTokenizerFast", "_encode_plus"),
    ],
    "look-up": [
        ("omlx_cache.integrations.lanes:Lane", name) for name in ("find", "awaited", "fly")
    ],
    "restore": [("omlx_cache.integrations.lanes:Lane", "restore")],
    "store": [
        ("omlx_cache.integrations.mlx_lm.served_cache:ServedPromptCache", "insert_cache"),
        ("omlx_cache.integrations.mlx_lm.following:FollowedRows", "store"),
    ],
    "forward": [("mlx_lm.generate:BatchGenerator", "next")],
}
PARTS = ("tokenise", "restore", "forward")
"""Spans that begin once or again; time in no span is split by them."""
CONFIG: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "head_dim"), 64),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 1),
    **{"model_type": "qwen3", "num_hidden_layers": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6},
    **{"vocab_size": 8200, "max_position_embeddings": 1 << 20, "tie_word_embeddings": True},
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def text(words: int) -> str:
    return " ".join(
        f"{chr(97 + n % 26) * (n % 3)}{n * 7919 % 99991:x}"
        for n in random.choices(range(3000), k=words)
    )


def timed(
    inner: Any, span: str, seconds: Counter[str], begun: dict[str, tuple[float, float]]
) -> Any:
    """Return a function that adds what it takes to a span, less what other spans take in it.
    `begun` has when each span began for the first time in a turn, and the sum of all spans then."""

    def call(*args: Any, **options: Any) -> Any:
        began, others = now = time.perf_counter(), seconds.total()
        begun.setdefault(span, now)
        try:
            return inner(*args, **options)
        finally:
            seconds[span] += (  # type: ignore[assignment]
                time.perf_counter() - began - (seconds.total() - others)
            )

    return call


def write_model(folder: Path) -> PreTrainedTokenizerFast:
    """Write a model that `serve` loads, and return its tokenizer."""
    parameters = qwen3.Model(qwen3.ModelArgs.from_dict(CONFIG)).parameters()
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(tree_flatten(parameters)), {"format": "mlx"}
    )
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    inner.train_from_iterator([text(20_000)], trainers.BpeTrainer(vocab_size=8000))
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(str(folder))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "eos_token_id": 1}))
    return tokenizer


def first_token(
    messages: list[dict[str, str]], seconds: Counter[str], begun: dict[str, tuple[float, float]]
) -> dict[str, float]:
    """Return where the seconds went from a request's last byte to the first token of its answer."""
    body = json.dumps({"messages": messages, "max_tokens": ANSWER_TOKENS, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", PORT)) as client:
        client.sendall(head.encode() + body[:-1])
        time.sleep(IDLE_SECONDS)
        seconds.clear()
        begun.clear()
        began, received = time.perf_counter(), b""
        client.sendall(body[-1:])
        while b"data:" not in received:
            received += client.recv(1 << 16)
        ended = time.perf_counter()
        spans: dict[str, float] = {span: seconds[span] for span in SPANS}
        parts = {part: begun[part] for part in PARTS if part in begun}
        marks = {"": (began, 0.0), **parts, "the end": (ended, sum(spans.values()))}
        for (_, (since, spent)), (part, (until, sooner)) in pairwise(marks.items()):
            spans[f"to {part}"] = until - since - (sooner - spent)
        while client.recv(1 << 16):
            pass
    return {**spans, "total": ended - began}


def measure(
    tokenizer: Any, size: int, seconds: Counter[str], begun: dict[str, tuple[float, float]]
) -> dict[str, float]:
    """Return the milliseconds of each span of a warm turn behind about `size` tokens."""
    told = [
        {"role": role, "content": text(MESSAGE_WORDS)}
        for role in ("user", "assistant")
        * (size // len(tokenizer.encode(text(MESSAGE_WORDS))) // 2)
    ]
    restored = np.ones((size, CONFIG["num_hidden_layers"], 2 * CONFIG["head_dim"]), np.float32)
    turns: list[dict[str, float]] = []
    for _ in range(TURNS):
        asked = {"role": "user", "content": text(NEW_WORDS)}
        turn = first_token([*told, asked], seconds, begun)
        timed(restored.copy, "copy", copied := Counter[str](), {})()
        host = turn["total"] - turn["render"] - turn["forward"] - copied["copy"]
        turns.append({**turn, **copied, "host": host})
    return {name: 1e3 * median(turn[name] for turn in turns[2:]) for name in turns[-1]}


def run(tokenizer: Any, sizes: list[int], *noted: Any) -> None:
    """Print a table, and end the server."""
    try:
        found = [measure(tokenizer, size, *noted) for size in sizes]
        print(f"{'ms':12}", *(f"{size:>9,}" for size in sizes))
        for name in found[0]:
            print(f"{name:12}", *(f"{row[name]:9.1f}" for row in found), flush=True)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sizes = [int(size) for size in sys.argv[1:]] or list(SIZES)
    noted: tuple[Counter[str], dict[str, tuple[float, float]]] = Counter(), {}
    for span, places in SPANS.items():
        for place, name in places:
            owner = resolve_name(place)
            setattr(owner, name, timed(getattr(owner, name), span, *noted))
    qwen3.scaled_dot_product_attention = lambda queries, *_, **__: queries
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OMLX_CACHE_COLD_DIR"] = f"{folder}/cold"
        work = (write_model(Path(folder)), sizes, *noted)
        threading.Timer(START_SECONDS, run, work).start()
        sys.exit(main(["serve", "--port", str(PORT), "--model", folder]))
