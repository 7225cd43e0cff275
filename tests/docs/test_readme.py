import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from omlx_cache_daemon.cli import command_names

CodeBlock = Callable[[str, str, str], str]
SENTENCE, TIMES = "You are a helpful assistant. ", 100
"""The example's prompt, of which the tokenizer here makes six tokens each time."""
PROMPT_TOKENS = 6 * TIMES
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


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A directory with a model that mlx-lm loads from `model`."""
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    # Other weights may lie so close to a tie that a prefill in other chunks decides it otherwise.
    mx.random.seed(0)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(CONFIG))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(model_dir / "model.safetensors"), weights, {"format": "mlx"})
    (model_dir / "config.json").write_text(json.dumps(CONFIG))
    known = [*SENTENCE.replace(".", " .").split(), *(f"w{i}" for i in range(WORDS))][:WORDS]
    words = {word: i for i, word in enumerate(known)} | {"[UNK]": WORDS, "[EOS]": WORDS + 1}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(model_dir / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[EOS]"}
    (model_dir / "tokenizer_config.json").write_text(json.dumps(described))
    return tmp_path


def test_the_embedding_example_runs_and_a_second_process_restores_the_prompt(
    workplace: Path, code_block: CodeBlock
) -> None:
    program = code_block("README.md", "## Embed it", "python")
    assert len(program.splitlines()) <= 26
    assert program.count('"mlx-community/') == 1
    assert f'"{SENTENCE}" * {TIMES})' in program
    program = re.sub(r'"mlx-community/[^"]*"', '"model"', program)
    first = _run(program, workplace)
    second = _run(program, workplace)
    assert first[0] == f"0 of {PROMPT_TOKENS} tokens restored"
    assert second[0] == f"{PROMPT_TOKENS - 1} of {PROMPT_TOKENS} tokens restored"
    assert first[1:] == second[1:], "the answers must be the same"
    assert first[1:] != [""]


def _run(program: str, workplace: Path) -> list[str]:
    environment = {
        **os.environ,
        # The program runs elsewhere, so relative entries would lead nowhere.
        "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path),
        "OMLX_CACHE_COLD_DIR": str(workplace / "cold"),
        "OMLX_CACHE_SOCKET": "off",
        "OMLX_CACHE_MIN_FREE_BYTES": "0",
    }
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=workplace,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_every_command_that_the_readme_names_exists(root: Path) -> None:
    text = (root / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|bin/)omlx-cache ([a-z-]+)", text))
    assert {"demo", "config", "stats", "ls"} <= named
    assert named <= set(command_names())


def test_every_make_target_that_the_documents_name_exists(root: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", "docs/design.md", "docs/benchmarks.md"):
        named = set(re.findall(r"`make ([a-z-]+)", (root / document).read_text(encoding="utf-8")))
        assert named <= targets, document
