"""Bytes of a token of models that are known by name."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's pages: `token_bytes` of the layers that need every token. One that `ages` has
    windows or recurrent snapshots too, which are not replayed."""

    name: str
    token_bytes: int
    ages: bool = False


DEFAULT_SHAPE: Final = "llama-3.1-8b"
SHAPES: Final = {
    name: Shape(name, layers * kv_heads * head_dim * 2 * 2, ages)
    for name, layers, kv_heads, head_dim, ages in (
        ("llama-3.1-8b", 32, 8, 128, False),
        ("llama-3.3-70b", 80, 8, 128, False),
        ("mistral-small-24b", 40, 8, 128, False),
        ("qwen2.5-7b", 28, 4, 128, False),
        ("qwen3-8b", 36, 8, 128, False),
        ("qwen3-32b", 64, 8, 128, False),
        ("qwen3-coder-30b-a3b", 48, 4, 128, False),
        ("glm-4.5-air", 46, 8, 128, False),
        ("gpt-oss-20b", 12, 8, 64, True),
        ("gpt-oss-120b", 18, 8, 64, True),
        ("gemma-3-12b", 8, 8, 256, True),
        ("gemma-3-27b", 10, 16, 128, True),
        ("qwen3-next-80b-a3b", 12, 2, 256, True),
    )
}
"""In bfloat16, keys and values: the layers that need every token, their KV heads and channels."""
