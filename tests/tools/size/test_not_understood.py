"""What `omlx-cache size` answers for a model that it cannot trace: a reason, from the child."""

import subprocess
import sys
from typing import Any

import pytest
from tools.size.test_estimate import LLAMA_7B

from kit.examples import some
from omlx_cache.tools.size import SizingError, caches_of
from omlx_cache.tools.size.child import OUT_OF_MEMORY

DBRX = {
    "model_type": "dbrx",
    "vocab_size": 100_352,
    "d_model": 6144,
    "n_layers": 40,
    "n_heads": 48,
    "ffn_config": {"ffn_hidden_size": 10_752, "moe_num_experts": 16, "moe_top_k": 4},
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500_000},
    "torch_dtype": "bfloat16",
}


def test_a_class_that_evaluates_weights_is_stopped_by_the_memory_limit() -> None:
    with pytest.raises(SizingError, match=r"dbrx is not understood: .*evaluates weights") as caught:
        caches_of(DBRX, memory=256 << 20)
    assert "\n" not in str(caught.value)


def test_a_trace_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(SizingError, match=r"llama is not understood: .*over 0\.01 s"):
        caches_of(LLAMA_7B, seconds=0.01)


@pytest.mark.parametrize(
    ("config", "message"),
    some(
        [
            (
                {**LLAMA_7B, "model_type": "brand_new"},
                "brand_new is not understood: .*not supported",
            ),
            ({"model_type": "llama"}, "llama is not understood: .*missing .*hidden_size"),
        ],
        ({"model_type": "llama"}, "llama is not understood: .*missing .*hidden_size"),
    ),
)
def test_a_configuration_that_mlx_lm_cannot_take_is_refused_in_one_line(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(SizingError, match=message) as caught:
        caches_of(config)
    assert "\n" not in str(caught.value)


def test_a_configuration_without_a_model_type_is_refused() -> None:
    with pytest.raises(SizingError, match="no model_type"):
        caches_of({"hidden_size": 4096})


@pytest.mark.nightly
def test_where_the_system_holds_no_limit_the_child_stops_itself() -> None:
    code = (
        "import mlx.core as mx; from omlx_cache.tools.size import trace; "
        "held = mx.zeros(2**20); mx.eval(held); trace.watch(2**10)"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == OUT_OF_MEMORY
