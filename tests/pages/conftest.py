"""A small real Qwen3 whose head dim divides into quantisation groups, and stores to put it on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map
from mlx_lm.models.qwen3 import Model, ModelArgs

from omlx_cache import BlockStore, CacheSettings

BLOCK = 64


@pytest.fixture(scope="session")
def model() -> Any:
    args = ModelArgs(
        model_type="qwen3",
        hidden_size=128,
        num_hidden_layers=3,
        intermediate_size=128,
        num_attention_heads=4,
        rms_norm_eps=1e-6,
        vocab_size=256,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rope_theta=10_000.0,
        head_dim=64,
        tie_word_embeddings=True,
    )
    key = mx.random.key(7)
    made = Model(args)

    def draw(array: mx.array) -> mx.array:
        nonlocal key
        key, use = mx.random.split(key)
        drawn = mx.random.normal(array.shape, key=use) * 0.15 if array.ndim > 1 else array
        return drawn.astype(mx.bfloat16)

    made.update(tree_map(draw, made.parameters()))
    mx.eval(made.parameters())
    return made


@pytest.fixture
def open_store(tmp_path: Path) -> Callable[..., BlockStore]:
    """Return a function that opens a store on this test's directory."""

    def open_one(**changes: Any) -> BlockStore:
        granted: dict[str, Any] = {
            "cold_dir": tmp_path / "cold",
            "hot_bytes": "64MiB",
            "cold_bytes": "256MiB",
            "queue_bytes": "64MiB",
            "min_free_bytes": 0,
            "durability": "none",
            "socket": "off",
            "block_size": BLOCK,
        }
        return BlockStore(CacheSettings(**(granted | changes)))

    return open_one
