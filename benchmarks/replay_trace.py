"""Requests of coding agents from a trace, scaled down, and a small model that can serve them."""

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ,.;:()"


CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": 128,
    "max_position_embeddings": 65_536,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """One request: its place in the trace's time, its prompt, a character per token."""

    session: str
    at: float
    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of a trace is replayed. A block of the trace becomes `tokens_per_block` tokens;
    prompts longer than `longest` end a session."""

    sessions: int
    requests: int
    tokens_per_block: int
    longest: int
    gap_seconds: float = 30.0


def read_trace(path: Path, scale: Scale) -> list[ReplayRequest]:
    """Return the requests in the order in which they arrive.

    Sessions begin `gap_seconds` of trace time apart, so that they interleave. Sessions with equal
    tool and system prompts share those; raises OSError and KeyError for a file of another kind.
    """
    with gzip.open(path, "rt") as lines:
        sessions: list[dict[str, Any]] = [json.loads(line) for line in lines]
    fitting = (s for s in sessions if _length(s["requests"][0], scale) <= scale.longest)
    found: list[ReplayRequest] = []
    for number, session in enumerate(islice(fitting, scale.sessions)):
        found += _requests(session, number * scale.gap_seconds, scale)
    return sorted(found, key=lambda request: request.at)


def _requests(session: dict[str, Any], start: float, scale: Scale) -> Iterator[ReplayRequest]:
    tokens = session["block_tokens"]
    shared = (session["tool_tokens"] + session["system_tokens"]) // tokens
    common = f"{session['tool_tokens']}/{session['system_tokens']}"
    for request in session["requests"][: scale.requests]:
        if _length(request, scale) > scale.longest:
            return
        blocks = [
            _text(common if index < shared else str(session["id"]), block, scale.tokens_per_block)
            for index, block in enumerate(_blocks(request["runs"]))
        ]
        answer = request["out"] * scale.tokens_per_block // tokens
        yield ReplayRequest(
            str(session["id"]), start + request["t"], "".join(blocks), max(1, min(answer, 16))
        )


def _length(request: dict[str, Any], scale: Scale) -> int:
    return int(sum(request["runs"][1::2]) * scale.tokens_per_block)


def _blocks(runs: list[int]) -> Iterator[int]:
    for first, count in zip(runs[::2], runs[1::2], strict=True):
        yield from range(first, first + count)


def _text(owner: str, block: int, length: int) -> str:
    return "".join(random.Random(f"{owner}:{block}").choices(ALPHABET, k=length))


def write_model(directory: Path) -> Path:
    """Write a qwen3 model with random weights and a character tokeniser, in mlx-lm's format, the
    same in every run; return the directory."""
    from mlx_lm.models import qwen3
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    directory.mkdir(parents=True, exist_ok=True)
    mx.random.seed(0)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(CONFIG))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    (directory / "config.json").write_text(json.dumps(CONFIG))
    characters = ["<|end|>", *ALPHABET]
    fill = [chr(0x3B1 + index) for index in range(CONFIG["vocab_size"] - len(characters))]
    vocabulary = {text: index for index, text in enumerate(characters + fill)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<|end|>"))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", clean_up_tokenization_spaces=False
    ).save_pretrained(str(directory))
    return directory
