"""The contents of a model's caches, from mlx-lm's own class, which is not evaluated.

`python -m omlx_cache.tools.size_trace MEMORY [FOLDER]` reads a configuration from standard input,
and writes its finding, or why there is none, as JSON. FOLDER may have the weights.
"""

import copy
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from threading import Thread
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_map_with_path
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import _get_classes

from omlx_cache.adapters.base import UnsupportedCache
from omlx_cache.arrays.mlxio import NAMES
from omlx_cache.codecs.codec import Codec
from omlx_cache.codecs.identity import CODEC_NAMES
from omlx_cache.codecs.policy import CodecPolicy, LayerShape
from omlx_cache.pages.layout import Leaf, layout_of, part_specs
from omlx_cache.tools.size import (
    OUT_OF_MEMORY,
    TRACED,
    Config,
    GroupBytes,
    Sides,
    SizingError,
    TracedModel,
)
from omlx_cache_storage.page import TensorSpec

TOKENS = 32
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_DTYPES = ("float32", "float16", "bfloat16")
_WATCH_SECONDS = 0.01


def trace(config: Config, folder: str | None = None) -> TracedModel:
    """Evaluates only what the model's class evaluates. Raises SizingError for caches that cannot be
    stored, and the exceptions of mlx-lm and of the class."""
    named = _dtype_of(config) or _stored_dtype(folder)
    dtype = getattr(mx, named or "bfloat16")
    model = _build(config, dtype)
    caches = make_prompt_cache(model)
    try:
        before, after = (_call(model, caches) for _ in range(2))
    except UnsupportedCache as error:
        raise SizingError(f"its cache cannot be kept: {error}") from error
    for leaf, nbytes in after.items():
        if leaf.group.kind == "state" and before.get(leaf, nbytes) != nbytes:
            raise SizingError(f"cache {leaf.path} pools tokens into a state that grows with them")
    return TracedModel(
        # Not every model type has classes of its own.
        type(model).__module__.rpartition(".")[2],
        dtype.size,
        tuple(_groups(after)),
        () if named else ("the configuration names no dtype: 16 bits are assumed",),
    )


def _dtype_of(config: Config) -> str | None:
    for source in (*map(config.get, _TEXT_PARTS), config):
        for name in ("dtype", "torch_dtype"):
            if isinstance(source, Mapping) and source.get(name) in _DTYPES:
                return str(source[name])
    return None


def _stored_dtype(folder: str | None) -> str | None:
    """Return the floating-point type of most weights in a folder; reads their headers."""
    counts = Counter[str]()
    for path in Path(folder).glob("model*.safetensors") if folder else ():
        # One that cannot be read is no matter here.
        with suppress(RuntimeError):
            weights = cast(dict[str, mx.array], mx.load(str(path)))
            counts.update(str(weight.dtype).rpartition(".")[2] for weight in weights.values())
    return next((name for name, _ in counts.most_common() if name in _DTYPES), None)


def _build(config: Config, dtype: mx.Dtype) -> Any:
    """Return mlx-lm's model, its lazy weights cast as mlx-lm's loader casts them."""
    if config.get("model_file") is not None:
        raise SizingError("it brings code of its own (model_file)")
    # Some argument classes edit the nested dictionaries that they are given.
    own = copy.deepcopy(dict(config))
    model_class, args_class = _get_classes(own)
    model = model_class(args_class.from_dict(own))
    casts: Callable[[str], bool] = getattr(model, "cast_predicate", lambda path: True)

    def cast(path: str, value: mx.array) -> mx.array:
        floating = mx.issubdtype(value.dtype, mx.floating)
        return value.astype(dtype) if floating and casts(path) else value

    model.update(tree_map_with_path(cast, model.parameters()))
    model.eval()
    return model


def _call(model: Any, caches: list[Any]) -> dict[Leaf, int]:
    """Return the bytes of each cache that a few tokens use."""
    model(mx.zeros((1, TOKENS), dtype=mx.int32), cache=caches)
    held = {leaf: leaf.adapter.arrays(leaf.cache) for leaf in layout_of(caches).leaves}
    return {leaf: sum(a.nbytes for a in arrays.values()) for leaf, arrays in held.items() if arrays}


def _groups(used: dict[Leaf, int]) -> Iterator[GroupBytes]:
    sizes = [_token_bytes(list(used), name) for name in CODEC_NAMES]
    for group in dict.fromkeys(leaf.group for leaf in used):
        members = [index for index, leaf in enumerate(used) if leaf.group == group]
        yield GroupBytes(
            group.kind,
            group.window,
            len(members),
            sum(n for leaf, n in used.items() if leaf.group == group) * (group.kind == "state"),
            {
                name: Sides(*map(sum, zip(*(found[index] for index in members), strict=True)))
                for name, found in zip(CODEC_NAMES, sizes, strict=True)
            },
        )


def _token_bytes(leaves: list[Leaf], codec: Any) -> list[Sides]:
    sizes = []
    for leaf, chosen in zip(
        leaves, CodecPolicy(codec).plan(list(map(_shape, leaves))), strict=True
    ):
        if leaf.group.kind == "state":
            sizes.append(Sides(0, 0))
            continue
        keys, values = (leaf.adapter.arrays(leaf.cache)[side] for side in ("keys", "values"))
        sizes.append(Sides(_encoded(keys, chosen.keys), _encoded(values, chosen.values)))
    return sizes


def _encoded(array: Any, codec: Codec | None) -> int:
    """Return the bytes of a token's keys or values."""
    dense = TensorSpec("", NAMES[array.dtype], (1, array.shape[1], 1, array.shape[-1]))
    return sum(part.nbytes for part in ([dense] if codec is None else part_specs(dense, codec)))


def _shape(leaf: Leaf) -> LayerShape:
    arrays = leaf.adapter.arrays(leaf.cache)
    if leaf.group.kind == "state":
        return LayerShape("state", 0, 0, mx.float32)
    keys, values = arrays["keys"], arrays["values"]
    return LayerShape(leaf.group.kind, keys.shape[-1], values.shape[-1], keys.dtype)


def limit_memory(nbytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = Path("/proc/self/statm")
    if pages.exists():
        now = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, now + nbytes))
    else:
        Thread(target=watch, args=(nbytes,), daemon=True).start()


def watch(nbytes: int) -> None:
    """macOS knows the limit but does not hold it."""
    while mx.get_active_memory() < nbytes:
        time.sleep(_WATCH_SECONDS)
    os._exit(OUT_OF_MEMORY)


def main() -> int:
    mx.set_default_device(mx.cpu)
    limit_memory(int(sys.argv[1]))
    with redirect_stdout(sys.stderr):
        answer = _answer(json.load(sys.stdin), *sys.argv[2:])
    sys.stdout.buffer.write(TRACED.dump_json(answer))
    return 0


def _answer(config: Config, folder: str | None = None) -> TracedModel | str:
    try:
        return trace(config, folder)
    except SizingError as error:
        return str(error)
    except Exception as error:
        # A model's class may raise any error for a configuration that it cannot take.
        words = str(error).splitlines() or [""]
        return f"mlx-lm raises {type(error).__name__}: {words[0]}"


if __name__ == "__main__":
    raise SystemExit(main())
