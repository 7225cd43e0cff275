"""trace(): what is refused within the process, and that nothing is evaluated."""

from typing import Any

import mlx.core as mx
import pytest
from tools.size.test_estimate import DEEPSEEK_V3, LLAMA_7B

from omlx_cache.tools.size import SizingError
from omlx_cache.tools.size.trace import trace

LLAMA_70B = {
    **LLAMA_7B,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "intermediate_size": 28_672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
}


@pytest.mark.parametrize("config", [LLAMA_70B, DEEPSEEK_V3])
def test_the_largest_models_are_traced_without_their_weights(config: dict[str, Any]) -> None:
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    trace(config)
    assert mx.get_peak_memory() - before < 2**20


def test_the_configuration_is_left_as_it_was() -> None:
    config = {**LLAMA_70B, "text_config": {"dtype": "float16"}}
    copy = {**config, "text_config": dict(config["text_config"])}
    trace(config)
    assert config == copy


def test_a_model_that_brings_its_own_code_is_refused() -> None:
    with pytest.raises(SizingError, match="model_file"):
        trace({**LLAMA_7B, "model_file": "model.py"})


def test_a_missing_dtype_is_assumed_with_a_note() -> None:
    config = {name: value for name, value in LLAMA_7B.items() if name != "torch_dtype"}
    traced = trace(config)
    assert traced.itemsize == 2
    assert "16 bits" in traced.notes[0]


def test_the_language_models_dtype_counts() -> None:
    config = {**LLAMA_7B, "text_config": {"dtype": "float32"}}
    assert trace(config).itemsize == 4
