"""A small qwen3 model with random weights and a character tokeniser, in mlx-lm's format."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from benchmarks.replay_trace import ALPHABET

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


def write_model(directory: Path) -> Path:
    """Write the model's files, the same in every run, and return the directory."""
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
