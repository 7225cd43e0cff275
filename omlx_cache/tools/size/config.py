"""Finds and reads a model's config.json: a file, a folder, or an id in the local hub cache."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from .errors import SizingError

Config: TypeAlias = Mapping[str, Any]

_REVISION = "main"


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


def text_config(config: Config) -> Config:
    """Return the language model's part of a vision-language model's configuration."""
    for name in ("text_config", "llm_config", "language_config"):
        nested = config.get(name)
        if isinstance(nested, dict):
            return {**config, **nested}
    return config


class Fields:
    """Typed access to a configuration; every error names the field."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __contains__(self, name: str) -> bool:
        return self._config.get(name) is not None

    def count(self, *names: str, default: int | None = None) -> int:
        """Return the first of the named fields as an integer, else `default`."""
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SizingError(f"{name} is not a count: {value!r}")
            return value
        if default is None:
            raise SizingError(f"the configuration has no {' or '.join(names)}")
        return default

    def number(self, name: str, default: float) -> float:
        value = self._config.get(name)
        return float(value) if isinstance(value, int | float) else default

    def items(self, name: str) -> list[Any]:
        """Return a list field, empty when it is absent."""
        value = self._config.get(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple | str):
            raise SizingError(f"{name} is not a list: {value!r}")
        return list(value)

    def section(self, name: str) -> "Fields":
        """Return a nested object's fields, empty when it is absent."""
        value = self._config.get(name)
        return Fields(value if isinstance(value, dict) else {})

    def flag(self, name: str) -> bool:
        return bool(self._config.get(name))

    def text(self, name: str, default: str = "") -> str:
        value = self._config.get(name)
        return value if isinstance(value, str) else default
