"""The probe of an untested version: right caches pass, wrong ones do not; it remembers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache

from omlx_cache import register_adapter
from omlx_cache.adapters import adapter_for
from omlx_cache.integrations import probe

from .conftest import model_of


class Shifted(KVCache):
    """As of a version that keeps its keys otherwise: the adapter's arrays are not all of it."""

    shift: Any = 0.0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        keys, values = super().update_and_fetch(keys, values)
        self.shift = self.shift + 1.0
        return keys * self.shift, values


class ShiftedRing(RotatingKVCache):
    """As of a version whose ring lies otherwise than its fields say."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        given = super().update_and_fetch(keys, values)
        self._idx = min(self._idx, 7)
        return given


for kind, model in ((Shifted, KVCache()), (ShiftedRing, RotatingKVCache(32))):
    register_adapter(f"{__name__}.{kind.__name__}", adapter_for(model))


@pytest.mark.parametrize("family", ["qwen3", "qwen3_next", "gemma3_text", "deepseek_v32"])
def test_a_version_that_keeps_what_is_known_is_right(family: str) -> None:
    assert probe.difference(model_of(family)) == ""


@pytest.mark.parametrize("make", [Shifted, lambda: ShiftedRing(64)])
def test_a_version_that_keeps_something_else_is_not(make: Callable[[], Any]) -> None:
    model = model_of("qwen3")
    assert probe.difference(model, lambda: [make() for _ in model.layers])


def test_a_model_whose_caches_are_not_kept_needs_no_probe() -> None:
    model = model_of("qwen3")
    assert probe.difference(model, lambda: [object() for _ in model.layers]) == ""


def test_a_finding_is_remembered_for_its_model_and_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    found = iter(["", "keys of layer 0"])
    monkeypatch.setattr(probe, "difference", lambda *asked: tried.append(asked) or next(found))
    right = [probe.is_right("pytest", model_of("qwen3"), remembered=tmp_path) for _ in range(2)]
    assert (right, len(tried)) == ([True, True], 1)
    monkeypatch.setattr(probe, "version_of", lambda package: "1000")
    wrong = [probe.is_right("pytest", model_of("qwen3"), remembered=tmp_path) for _ in range(2)]
    assert (wrong, len(tried)) == ([False, False], 2)


def test_what_cannot_be_tried_is_not_right_and_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_asked: object) -> str:
        raise OSError("no room")

    monkeypatch.setattr(probe, "difference", fails)
    assert not probe.is_right("pytest", model_of("qwen3"), remembered=tmp_path)
    assert not list(tmp_path.iterdir())
