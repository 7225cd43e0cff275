"""What a token, a window and a recurrent snapshot of a model take: page sizes for a simulation."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from omlx_cache.simulate.errors import SimulationError


@dataclass(frozen=True, slots=True)
class Aging:
    """A layer group of which a restore needs a page at its own position: `window` tokens of
    `token_bytes`, or a snapshot."""

    name: str
    window: int = 0
    token_bytes: int = 0
    snapshot_bytes: int = 0

    def nbytes(self, position: int) -> int:
        """Return what its page at a position takes."""
        return self.token_bytes * min(self.window, position) + self.snapshot_bytes


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's pages: `token_bytes` of the layers that need every token, and the groups that
    age."""

    name: str
    token_bytes: int
    aging: tuple[Aging, ...] = ()


def attention(layers: int, kv_heads: int, head_dim: int) -> int:
    """Return the bytes of a token's keys and values in bfloat16."""
    return layers * kv_heads * head_dim * 2 * 2


def _plain(name: str, layers: int, kv_heads: int, head_dim: int) -> Shape:
    return Shape(name, attention(layers, kv_heads, head_dim))


def _windowed(name: str, full: int, local: int, kv_heads: int, head_dim: int, window: int) -> Shape:
    group = Aging(f"window{window}", window, attention(local, kv_heads, head_dim))
    return Shape(name, attention(full, kv_heads, head_dim), (group,))


def _delta_net(layers: int) -> int:
    """Return a snapshot of Qwen3-Next's gated delta nets: a matrix of 128 x 128 for each of 32
    heads in float32, and the last three inputs of a convolution over 8,192 channels."""
    return layers * (32 * 128 * 128 * 4 + 3 * 8192 * 2)


_SHAPES = (
    _plain("llama-3.1-8b", 32, 8, 128),
    _plain("llama-3.3-70b", 80, 8, 128),
    _plain("mistral-small-24b", 40, 8, 128),
    _plain("qwen2.5-7b", 28, 4, 128),
    _plain("qwen3-8b", 36, 8, 128),
    _plain("qwen3-32b", 64, 8, 128),
    _plain("qwen3-coder-30b-a3b", 48, 4, 128),
    _plain("glm-4.5-air", 46, 8, 128),
    _windowed("gpt-oss-20b", 12, 12, 8, 64, 128),
    _windowed("gpt-oss-120b", 18, 18, 8, 64, 128),
    _windowed("gemma-3-12b", 8, 40, 8, 256, 1024),
    _windowed("gemma-3-27b", 10, 52, 16, 128, 1024),
    Shape("qwen3-next-80b-a3b", attention(12, 2, 256), (Aging("state", 0, 0, _delta_net(36)),)),
)
SHAPES: Final[Mapping[str, Shape]] = MappingProxyType({shape.name: shape for shape in _SHAPES})
DEFAULT_SHAPE: Final = "llama-3.1-8b"


def shape_of(model: str) -> Shape:
    """Return the shape of a model: one of the table, or what its config.json says. Raises
    SimulationError; imports no MLX, but may start a process that does."""
    known = SHAPES.get(model.strip().lower())
    return known if known is not None else shape_of_config(model)


def shape_of_config(config: str) -> Shape:
    """Return the shape of a config.json, a folder that holds one, or an id in the hub's cache."""
    from omlx_cache.tools.size.estimate import SizingError, caches_of

    try:
        caches = caches_of(config)
    except SizingError as error:
        names = ", ".join(SHAPES)
        raise SimulationError(f"{error}; the models known by name are {names}") from None
    paged, aging = 0, []
    for group in caches.groups:
        keys, values = group.token_bytes["dense"]
        if group.kind == "paged":
            paged += keys + values
        elif group.kind == "window":
            name = f"window{group.window}"
            aging.append(Aging(name, group.window, keys + values, group.snapshot_bytes))
        else:
            aging.append(Aging("state", 0, 0, group.snapshot_bytes))
    if not paged:
        raise SimulationError(
            f"{config}: no layer of it keeps every token; such a model is not simulated"
        )
    return Shape(caches.model_type, paged, tuple(aging))
