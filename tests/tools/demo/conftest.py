import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = 60
CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 tokens, in the demo's second process too, keep the prompts short."""
    monkeypatch.setenv("OMLX_CACHE_BLOCK_SIZE", "16")


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A model with a tokenizer in the layout that mlx-lm loads."""
    path = tmp_path / "model"
    path.mkdir()
    model = qwen3.Model(qwen3.ModelArgs.from_dict(CONFIG))
    model.set_dtype(mx.bfloat16)
    mx.save_safetensors(
        str(path / "model.safetensors"), dict(tree_flatten(model.parameters())), {"format": "mlx"}
    )
    (path / "config.json").write_text(json.dumps(CONFIG))
    vocabulary = {f"w{i}": i for i in range(WORDS)} | {"[UNK]": WORDS, "[EOS]": WORDS + 1}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "[UNK]",
        "eos_token": "[EOS]",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(described))
    return path


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.txt"
    path.write_text(" ".join(f"w{i * i % WORDS}" for i in range(120)))
    return path
