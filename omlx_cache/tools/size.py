"""How much memory a model's KV takes: per token, per block, and for a context and a batch.

Imports no MLX. A model is traced in a process of its own, with limited memory and time: a few of
mlx-lm's classes evaluate weights on the way, and the child's failure is the answer for them.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import TypeAdapter

from omlx_cache.codecs.identity import CodecName
from omlx_cache_storage.errors import CacheError

Kind: TypeAlias = Literal["paged", "window", "state"]
Config: TypeAlias = Mapping[str, Any]
MEMORY_BYTES = 2 << 30
"""Bytes that the child may take beyond its libraries'; a trace takes a few MB of it."""
DEFAULT_BLOCK = 256
SECONDS = 120.0
OUT_OF_MEMORY = 3
"""The exit status of a child that stopped itself."""


class SizingError(CacheError, ValueError):
    """The configuration cannot be read, or is not understood."""


class Sides(NamedTuple):
    """Bytes of one token, in all caches of a group."""

    keys: int
    values: int


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """The caches of one model that age alike, together. `window` is how many tokens they hold, 0
    for all of them; `token_bytes` are a token's bytes under each codec; `snapshot_bytes` do not
    grow with the tokens."""

    kind: Kind
    window: int
    caches: int
    snapshot_bytes: int
    token_bytes: Mapping[CodecName, Sides]


@dataclass(frozen=True, slots=True)
class TracedModel:
    """`notes` says what had to be assumed."""

    model_type: str
    itemsize: int
    groups: tuple[GroupBytes, ...]
    notes: tuple[str, ...] = ()


TRACED: TypeAdapter[TracedModel | str] = TypeAdapter(TracedModel | str)
"""The child's JSON: its finding, or why there is none."""


def caches_of(
    model: str | Path | Config, *, memory: int = MEMORY_BYTES, seconds: float = SECONDS
) -> TracedModel:
    """Blocks for about a second, at most for `seconds`. `model` is a config.json, a folder that
    holds one, an id in the local hub cache, or the parsed configuration. Raises SizingError."""
    config = read_config(model) if isinstance(model, str | Path) else model
    named = config.get("model_type")
    if not isinstance(named, str) or not named:
        raise SizingError("the configuration names no model_type")
    # -P: the working directory may be a downloaded model's, with modules of its own.
    command = [sys.executable, "-P", "-m", "omlx_cache.tools.size_trace", str(memory)]
    folder = [str(config_path(model).parent)] if isinstance(model, str | Path) else []
    try:
        ended = subprocess.run(
            command + folder,
            input=json.dumps(config),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise SizingError(_not_understood(named, f"tracing it took over {seconds:g} s")) from None
    if ended.returncode < 0 or ended.returncode == OUT_OF_MEMORY:
        raise SizingError(
            _not_understood(
                named,
                f"building it takes more than {memory >> 20} MiB: its class evaluates weights",
            )
        )
    if ended.returncode != 0:
        words = ended.stderr.strip().splitlines() or ["it said nothing"]
        raise SizingError(_not_understood(named, f"the process that traces it failed: {words[-1]}"))
    answer = TRACED.validate_json(ended.stdout)
    if isinstance(answer, str):
        raise SizingError(_not_understood(named, answer))
    return answer


def _not_understood(model_type: str, reason: str) -> str:
    return f"{model_type} is not understood: {reason}"


def read_config(model: str | Path) -> Config:
    """Never asks the network. Raises SizingError."""
    path = config_path(model)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SizingError(f"{path} cannot be read as a model's config.json: {error}") from None
    if not isinstance(config, dict):
        raise SizingError(f"{path} is not a model's config.json: it holds no object")
    return config


def config_path(model: str | Path) -> Path:
    if not str(model).strip():
        raise SizingError(
            "the model's name is empty: give a config.json, a folder that holds one, or an id"
        )
    path = Path(model).expanduser()
    for candidate in (path, path / "config.json"):
        if candidate.is_file():
            return candidate
    # mlx-lm depends on it. Its import takes longer than all that is here.
    from huggingface_hub import constants, try_to_load_from_cache

    # It raises ValueError for a text that is no id.
    with suppress(ValueError):
        found = try_to_load_from_cache(str(model), "config.json")
        if isinstance(found, str):
            return Path(found)
    lacking = "the folder has no config.json" if path.is_dir() else "no such config.json or folder"
    raise SizingError(f"{model}: {lacking}, and no such model in {constants.HF_HUB_CACHE}")


@dataclass(frozen=True, slots=True)
class GroupEstimate:
    """The caches of one kind and window. `token_bytes` are a held token's, over all layers of the
    group; `block_bytes` are one page's (a state page is a snapshot, for any block size).
    `held_tokens` of the context are held, in `context_bytes` for the whole batch; `reserved_bytes`
    include room to grow."""

    kind: Kind
    window: int
    layers: int
    token_bytes: int
    block_bytes: int
    held_tokens: int
    key_bytes: int
    value_bytes: int
    context_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    model_type: str
    codec: CodecName
    itemsize: int
    context: int
    reserve: int
    batch: int
    block_size: int
    groups: tuple[GroupEstimate, ...]
    notes: tuple[str, ...]

    def total(self, name: str) -> int:
        return sum(getattr(group, name) for group in self.groups)


def estimate(
    caches: TracedModel,
    *,
    context: int = 4096,
    batch: int = 1,
    block_size: int = DEFAULT_BLOCK,
    codec: CodecName = "dense",
    reserve: int = 0,
) -> Estimate:
    """Estimate with `reserve` tokens of room to grow for each sequence."""
    return Estimate(
        caches.model_type,
        codec,
        caches.itemsize,
        context,
        reserve,
        batch,
        block_size,
        tuple(_group(g, codec, context, reserve, batch, block_size) for g in caches.groups),
        caches.notes,
    )


def _group(
    group: GroupBytes, codec: CodecName, context: int, reserve: int, batch: int, block_size: int
) -> GroupEstimate:
    keys, values = group.token_bytes[codec]
    held, room = _held(context, group), _held(context + reserve, group)
    return GroupEstimate(
        kind=group.kind,
        window=group.window,
        layers=group.caches,
        token_bytes=keys + values,
        block_bytes=(keys + values) * block_size + group.snapshot_bytes,
        held_tokens=held,
        key_bytes=keys * held * batch,
        value_bytes=values * held * batch,
        context_bytes=((keys + values) * held + group.snapshot_bytes) * batch,
        reserved_bytes=((keys + values) * room + group.snapshot_bytes) * batch,
    )


def _held(tokens: int, group: GroupBytes) -> int:
    if group.kind == "state":
        return 0
    return min(tokens, group.window) if group.window else tokens
