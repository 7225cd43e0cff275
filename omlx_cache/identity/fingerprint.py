"""Which model computed the KV: a digest over its code, its configuration and its weights.

In memory every parameter contributes its name, dtype, shape and values, beyond 1 MiB evenly spaced
samples. On disk the configuration, the safetensors headers and samples do: milliseconds for an 8B
model.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from omlx_cache.arrays.mlxio import Array, host_views

WHOLE_BYTES = 1 << 20
SAMPLES = 1024
FILE_SAMPLES = 64
FILE_SAMPLE_BYTES = 4096


def fingerprint_model(model: Any) -> str:
    """Return the hex digest of a model in memory; evaluates samples of its parameters."""
    digest = hashlib.sha256()
    _feed(digest, type(model).__module__, type(model).__qualname__, _configuration(model))
    flat: Any = tree_flatten(model.parameters())
    named = sorted(flat, key=lambda item: item[0])
    samples = host_views([_sample(array) for _name, array in named])
    for (name, array), sample in zip(named, samples, strict=True):
        _feed(digest, name, str(array.dtype), list(array.shape))
        digest.update(np.ascontiguousarray(sample).tobytes())
    return digest.hexdigest()


def shares_weights(one: Any, other: Any) -> bool:
    """Return whether two models have an array in common, as a wrapper or a part has with the whole;
    True where a model does not show its arrays."""
    if not callable(getattr(other, "parameters", None)):
        return True
    flat: Any = [tree_flatten(model.parameters()) for model in (one, other)]
    own, others = ({id(array) for _name, array in named} for named in flat)
    return not own.isdisjoint(others)


def fingerprint_path(directory: str | os.PathLike[str]) -> str:
    """Return the hex digest of a model's files; raises OSError when they cannot be read."""
    path = Path(directory)
    digest = hashlib.sha256()
    for name in ("config.json", "adapter_config.json"):
        if (path / name).exists():
            _feed(digest, name, (path / name).read_text(errors="replace"))
    for file in sorted(path.glob("*.safetensors")):
        _feed(digest, file.name, file.stat().st_size)
        with file.open("rb") as stream:
            for offset, length in _file_samples(file.stat().st_size, stream.read(8)):
                stream.seek(offset)
                digest.update(stream.read(length))
    return digest.hexdigest()


def adapter_identity(adapter: str | os.PathLike[str] | None) -> str:
    """Return what stands for an adapter in a namespace: its files' digest, or its name. Raises
    FileNotFoundError for what looks like a path and is no directory."""
    if adapter is None:
        return ""
    if Path(adapter).is_dir():
        return fingerprint_path(adapter)
    if isinstance(adapter, os.PathLike) or os.sep in adapter:
        raise FileNotFoundError(f"adapter: there is no directory {os.fspath(adapter)!r}")
    return f"name:{os.fspath(adapter)}"


def _file_samples(size: int, prefix: bytes) -> Iterator[tuple[int, int]]:
    header = min(int.from_bytes(prefix, "little") + 8, size)
    yield 0, header
    last = max(header, size - FILE_SAMPLE_BYTES)
    for index in range(FILE_SAMPLES):
        yield header + (last - header) * index // (FILE_SAMPLES - 1), FILE_SAMPLE_BYTES


def _sample(array: Array) -> Array:
    flat = array.reshape(-1)
    if array.nbytes <= WHOLE_BYTES:
        return mx.contiguous(flat)
    step = (array.size - 1) / (SAMPLES - 1)
    index = mx.array(np.minimum(np.arange(SAMPLES) * step, array.size - 1).astype(np.int64))
    return mx.take(flat, index)


def _configuration(model: Any) -> object:
    args = getattr(model, "args", None)
    return _plain(getattr(model, "config", None) if args is None else args)


def _plain(value: Any) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _feed(digest: Any, *values: object) -> None:
    text = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    digest.update(len(text).to_bytes(8, "little") + text)
