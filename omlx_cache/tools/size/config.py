"""Finds and reads a model's config.json: a file, a folder, or an id in the local hub cache."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from .errors import SizingError

Config: TypeAlias = Mapping[str, Any]

_REVISION = "main"
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_DTYPES = ("float32", "float16", "bfloat16")


def read_config(model: str | Path) -> Config:
    """Return the parsed config.json of `model`; reads files only, never the network.

    Raises SizingError saying where was looked.
    """
    path = config_path(model)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SizingError(f"{path} cannot be read as a model's config.json: {error}") from None
    if not isinstance(config, dict):
        raise SizingError(f"{path} is not a model's config.json: it holds no object")
    return config


def config_path(model: str | Path) -> Path:
    """Return where the config.json of a path or of a hub id lies."""
    if not str(model).strip():
        raise SizingError(
            "the model's name is empty: give a config.json, a folder that holds one, or an id"
        )
    path = Path(model).expanduser()
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        return path
    snapshots = [
        folder / "config.json" for hub in hub_folders() for folder in _snapshots(hub, str(model))
    ]
    for candidate in snapshots:
        if candidate.is_file():
            return candidate
    looked = ", ".join(map(str, hub_folders()))
    raise SizingError(f"{model}: no such config.json or folder, and no such model in {looked}")


def hub_folders() -> list[Path]:
    """Return the folders that the Hugging Face hub client keeps models in, by its variables."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(name):
            return [Path(value).expanduser()]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    home = Path(os.environ.get("HF_HOME") or cache / "huggingface").expanduser()
    return [home / "hub"]


def _snapshots(hub: Path, model_id: str) -> list[Path]:
    """Return the model's snapshot folders, the main revision first, then the newest."""
    if not model_id or model_id.startswith(("/", ".", "~")) or model_id.count("/") > 1:
        return []
    folder = hub / f"models--{model_id.replace('/', '--')}"
    try:
        found = sorted(
            (folder / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime, reverse=True
        )
    except OSError:
        return []
    try:
        main = (folder / "refs" / _REVISION).read_text(encoding="utf-8").strip()
    except OSError:
        main = ""
    return sorted(found, key=lambda path: path.name != main)


def model_type_of(config: Config) -> str:
    """Return the model type; raises SizingError when the configuration names none."""
    named = config.get("model_type")
    if not isinstance(named, str) or not named:
        raise SizingError("the configuration names no model_type")
    return named


def dtype_of(config: Config) -> str | None:
    """Return the floating-point type that a configuration or its language model's part names."""
    nested = (config.get(name) for name in _TEXT_PARTS)
    for source in (*(part for part in nested if isinstance(part, dict)), config):
        for name in ("dtype", "torch_dtype"):
            if source.get(name) in _DTYPES:
                return str(source[name])
    return None
