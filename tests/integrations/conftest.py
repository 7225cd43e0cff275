"""A store in a directory of the test's own, and models of the zoo."""

import importlib.util
import random
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mlx_lm import load

from kit import zoo
from kit.tinylm import make_model
from omlx_cache import BlockStore, scope

Open = Callable[..., BlockStore]
EXAMPLE = Path(__file__).parents[2] / "examples" / "scheduler.py"


@pytest.fixture
def open_store(open_store: Open) -> Open:
    """Opens stores as the kit does, with other budgets and larger pages."""
    given = {"hot_bytes": "64MiB", "cold_bytes": "256MiB", "block_size": 64}
    return lambda **options: open_store(**{**given, **options})


@cache
def model_of(family: str) -> Any:
    return zoo.build(family)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(200), k=length)


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """Models with their tokenizers, as mlx-lm loads them from a directory."""
    root: Path = tmp_path_factory.mktemp("models")
    made = {
        "dense": make_model(root / "dense", "qwen3", head_dim=32),
        "draft": make_model(root / "draft", "qwen3", seed=4),
        "windowed": make_model(root / "windowed", "gemma3_text"),
        "hybrid": make_model(root / "hybrid", "qwen3_next"),
    }
    return {name: load(str(path)) for name, path in made.items()}


@pytest.fixture(scope="module")
def scheduler() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("example_scheduler", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work on this machine would decide what is too slow to be prepared."""
    monkeypatch.setattr(scope, "SLOW_SECONDS", 60.0)
    monkeypatch.setattr(scope, "RESTORE_SECONDS", 60.0)
