import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import pytest

from omlx_cache import BlockStore, CacheSettings, PrefixCache
from omlx_cache.adapters import registry

NAME = "my_models.cache.KeysOnlyCache"
TOKENS = list(range(100))


class KeysOnlyCache:
    """What the guide's example describes: keys in a buffer that grows by 128."""

    def __init__(self) -> None:
        self.keys: mx.array | None = None
        self.offset = 0


@pytest.fixture(autouse=True)
def _my_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(KeysOnlyCache, "__module__", "my_models.cache")
    monkeypatch.setitem(sys.modules, "my_models", ModuleType("my_models"))
    yield
    registry._ADAPTERS.pop(NAME, None)


class _Model:
    layers = (None, None)

    def parameters(self) -> dict[str, Any]:
        return {}


def test_the_guides_example_keeps_and_restores_its_class(
    tmp_path: Path, code_block: Callable[[str, str, str], str]
) -> None:
    def make() -> list[Any]:
        return [KeysOnlyCache(), KeysOnlyCache()]

    settings = CacheSettings(cold_dir=tmp_path, socket="off", min_free_bytes=0, block_size=16)
    with BlockStore(settings) as store:
        before = PrefixCache(_Model(), store, make_cache=make)
        assert before.session(TOKENS).miss_reason == f"unsupported:{NAME}"
        exec(code_block("docs/adapters.md", "## An example", "python"), {})
        cache = PrefixCache(_Model(), store, make_cache=make)
        with cache.session(TOKENS) as session:
            for index, layer in enumerate(session.prompt_cache):
                layer.keys = mx.arange(128 * 4).reshape(1, 1, 128, 4) + index
                layer.offset = len(TOKENS)
            assert session.commit().pages == 7
        restored = cache.session(TOKENS, max_new_tokens=100)
        assert restored.cached_tokens == len(TOKENS) - 1
        for index, layer in enumerate(restored.prompt_cache):
            assert layer.offset == len(TOKENS) - 1
            assert layer.keys.shape[2] == 256, "room to grow in steps of 128"
            wanted = mx.arange(99 * 4).reshape(1, 1, 99, 4) + index
            assert mx.array_equal(layer.keys[:, :, :99], wanted).item()
