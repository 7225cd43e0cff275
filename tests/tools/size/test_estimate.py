"""estimate(): known models, totals, where configurations are found, what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omlx_cache.tools import size
from omlx_cache.tools.size import SizingError, caches_of, config_path, read_config
from omlx_cache.tools.size.trace import trace

GIB = 2**30
LLAMA_7B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": 32000,
    "torch_dtype": "float16",
}
LLAMA_3_8B = {**LLAMA_7B, "num_key_value_heads": 8, "torch_dtype": "bfloat16"}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "torch_dtype": "bfloat16",
}
QWEN3_NEXT_80B = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "intermediate_size": 5120,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 512,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151936,
    "rope_theta": 10000000,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 262144,
    "torch_dtype": "bfloat16",
}
GEMMA_3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "vocab_size": 262208,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
    "torch_dtype": "bfloat16",
}


def estimate(config: dict[str, Any], **options: Any) -> size.Estimate:
    """As the product's, but traced here: a process for each would take a second."""
    return size.estimate(trace(config), **options)


def test_a_7b_model_at_4096_tokens_is_one_gib_of_keys_and_one_of_values() -> None:
    result = estimate(LLAMA_7B, context=4096)
    assert (result.key_bytes, result.value_bytes, result.context_bytes) == (GIB, GIB, 2 * GIB)
    assert result.token_bytes == 512 * 1024
    assert result.block_bytes == 128 * 2**20


def test_grouped_queries_divide_it() -> None:
    assert estimate(LLAMA_3_8B).context_bytes == GIB // 2


def test_a_latent_is_counted_once_not_per_head() -> None:
    assert estimate(DEEPSEEK_V3).token_bytes == 61 * (512 + 64) * 2


def test_recurrent_state_does_not_grow_with_the_context() -> None:
    short, long = (estimate(QWEN3_NEXT_80B, context=n) for n in (64, 64_000))
    state = {group.kind: group for group in short.groups}["state"]
    assert state == {group.kind: group for group in long.groups}["state"]
    assert state.layers == 36
    assert 75e6 < state.context_bytes < 80e6
    paged = {group.kind: group for group in short.groups}["paged"]
    assert paged.context_bytes == 64 * 12 * 2 * 2 * 256 * 2


def test_windows_are_held_up_to_their_size() -> None:
    result = estimate(GEMMA_3_27B, context=32_768, reserve=10)
    window, paged = result.groups
    assert (window.kind, window.window, window.layers) == ("window", 1024, 52)
    assert (paged.kind, paged.layers) == ("paged", 10)
    assert window.held_tokens == 1024
    assert paged.held_tokens == 32_768
    assert window.reserved_bytes == window.context_bytes
    assert paged.reserved_bytes - paged.context_bytes == 10 * paged.token_bytes


def test_batch_multiplies_what_is_held_and_not_what_a_token_takes() -> None:
    one, four = estimate(GEMMA_3_27B), estimate(GEMMA_3_27B, batch=4)
    assert four.context_bytes == 4 * one.context_bytes
    assert four.token_bytes == one.token_bytes


def test_codecs_save_what_their_bits_say() -> None:
    dense, eight, four = (
        estimate(LLAMA_3_8B, codec=codec).context_bytes for codec in ("dense", "affine8", "affine4")
    )
    assert dense / eight == pytest.approx(16 / 8.5)
    last_layer = dense / 32
    assert four - last_layer == pytest.approx((dense - last_layer) * 4.5 / 16)


@pytest.mark.parametrize("argument", [{"context": -1}, {"batch": 0}, {"block_size": 0}])
def test_sizes_out_of_range_are_refused_by_name(argument: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(argument))):
        estimate(LLAMA_7B, **argument)


def test_an_unknown_codec_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="affine8"):
        estimate(LLAMA_7B, codec="zip")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_a_file_a_folder_and_a_hub_id_are_found(hub: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "model", LLAMA_7B)
    assert config_path(path) == config_path(path.parent) == path
    model = hub / "models--org--name"
    other = write(model / "snapshots" / "newer", LLAMA_3_8B)
    main = write(model / "snapshots" / "abc", LLAMA_7B)
    assert config_path("org/name") in (other, main)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    assert config_path("org/name") == main
    assert read_config("org/name") == LLAMA_7B


@pytest.mark.parametrize("model", ["org/absent", "../../etc", "a/b/c", "/nowhere/config.json", ""])
def test_a_model_that_is_not_there_says_where_was_looked(model: str, hub: Path) -> None:
    with pytest.raises(SizingError, match="no such"):
        caches_of(model or str(hub / "nothing"))


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SizingError, match=r"config\.json"):
        caches_of(path)


def test_it_imports_no_mlx() -> None:
    code = (
        "import sys, omlx_cache.tools.size; "
        "sys.exit(any(name.split('.')[0] in ('mlx', 'mlx_lm', 'numpy') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
