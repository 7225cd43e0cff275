"""Each snippet of the embedding guide runs, in their order, and does what the guide says."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest

from kit import zoo
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


def test_every_snippet_runs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in (f"COLD_DIR={tmp_path}", "SOCKET=off", "MIN_FREE_BYTES=0", "BLOCK_SIZE=16"):
        monkeypatch.setenv(*f"OMLX_CACHE_{given}".split("="))
    guide = (root / "docs" / "embedding.md").read_text(encoding="utf-8")
    scope: dict[str, Any] = {
        "model": zoo.build("qwen3"),
        "tokens": TOKENS,
        "other_tokens": TOKENS[::-1],
        "tokenizer": SimpleNamespace(decode=str),
    }
    for snippet in re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL):
        exec(snippet, scope)
    with scope["store"]:
        assert scope["result"].tokens == len(TOKENS) + 64
        assert scope["session"].cached_tokens == scope["found"].cached_tokens == len(TOKENS) - 1
        assert scope["preparation"].computed >= 64
        assert scope["pin"].found_tokens == len(TOKENS)
        assert scope["step"].commit.pages > 0
        assert scope["kept"].tokens == len(TOKENS) + 64
        assert "error" not in scope["store"].stats().requests.skips


def test_the_guides_example_keeps_and_restores_its_class(
    tmp_path: Path, code_block: Callable[[str, str, str], str]
) -> None:
    def make() -> list[Any]:
        return [KeysOnlyCache(), KeysOnlyCache()]

    settings = CacheSettings(cold_dir=tmp_path, socket="off", min_free_bytes=0, block_size=16)
    with BlockStore(settings) as store:
        before = PrefixCache(zoo.build("qwen3"), store, make_cache=make)
        assert before.session(TOKENS).miss_reason == f"unsupported:{NAME}"
        exec(code_block("docs/embedding.md", "## A cache class of your own", "python"), {"mx": mx})
        cache = PrefixCache(zoo.build("qwen3"), store, make_cache=make)
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
            assert (layer.keys[:, :, :99] - index).flatten().tolist() == [*range(99 * 4)]
