"""How much the benchmarks move: shapes of KV from a laptop's to a GPU's."""

from dataclasses import dataclass

BLOCK_SIZE = 256
ITEM_BYTES = 2


@dataclass(frozen=True, slots=True)
class Size:
    """A bfloat16 KV cache of `tokens` (whole blocks), and what the other cases take.

    `model_tokens` are prefilled by the small real model, `chain_tokens` looked up, `files` scanned.
    """

    name: str
    layers: int
    heads: int
    head_dim: int
    tokens: int
    runs: int
    model_tokens: int
    chain_tokens: int
    files: int

    @property
    def kv_bytes(self) -> int:
        return 2 * self.layers * self.heads * self.tokens * self.head_dim * ITEM_BYTES

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return 1, self.heads, self.tokens, self.head_dim


SIZES = {
    size.name: size
    for size in (
        Size("tiny", 2, 1, 16, 2 * BLOCK_SIZE, 2, 64, 4 * BLOCK_SIZE, 40),
        Size("small", 8, 8, 64, 4096, 7, 1024, 32_768, 2_000),
        Size("normal", 16, 8, 64, 8192, 7, 2048, 131_072, 10_000),
        Size("large", 32, 8, 128, 32_768, 3, 4096, 131_072, 100_000),
    )
}


@dataclass(frozen=True, slots=True)
class OverheadSize:
    """What the host's own work is timed on: lengths in whole blocks, and tokens appended."""

    layers: int
    tokens: tuple[int, ...]
    appended: int
    runs: int


OVERHEAD_SIZES = {
    "tiny": OverheadSize(2, (2 * BLOCK_SIZE,), BLOCK_SIZE, 1),
    "small": OverheadSize(32, (32_768,), 4 * BLOCK_SIZE, 3),
    "normal": OverheadSize(32, (32_768, 131_072), 8 * BLOCK_SIZE, 5),
    "large": OverheadSize(32, (32_768, 131_072), 8 * BLOCK_SIZE, 5),
}
