"""Codecs are compiled when a model's cache is made, not in the first request."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from kit import zoo
from kit.drive import settings
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.codecs import turbo, turbo_fused


class Kernels:
    """Stands for a back end that compiles kernels: each runs the plain form of a codec."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def make(self, name: str, **_: Any) -> Callable[..., list[mx.array]]:
        self.made.append(name)

        def run(inputs: list[mx.array], output_dtypes: list[mx.Dtype], **_: Any) -> list[mx.array]:
            codec = turbo.TurboCodec(64, 4)
            if "_encode_" in name:
                norms, words = turbo._encode(codec, inputs[0])
                return [norms.astype(output_dtypes[0]), words]
            return [turbo._decode(codec, output_dtypes[0], inputs[1], inputs[0])]

        return run


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    found = Kernels()
    monkeypatch.setattr(turbo_fused, "_maker", lambda: found.make)
    monkeypatch.setattr(turbo_fused, "available", lambda: True)
    monkeypatch.setattr(turbo_fused, "_FOUND", {})
    return found


@pytest.mark.parametrize("field", ["codec", "cold_codec"])
def test_no_kernel_is_left_to_the_first_request(
    kernels: Kernels, tmp_path: Any, field: str
) -> None:
    model = zoo.build("llama")
    for cached in (0, 512):
        with BlockStore(settings(tmp_path, **{field: "turbo4"})) as store:
            cache = PrefixCache(model, store)
            assert len(kernels.made) == 2, "one to encode and one to decode"
            with cache.session([n % 100 for n in range(600)]) as session:
                assert session.cached_tokens >= cached
                for chunk in session.prefill_chunks():
                    model(mx.array([chunk]), cache=session.prompt_cache)
                session.commit()
            assert store.flush(30)
            assert len(kernels.made) == 2


def test_dense_pages_compile_nothing(kernels: Kernels, tmp_path: Any) -> None:
    with BlockStore(settings(tmp_path)) as store:
        PrefixCache(zoo.build("llama"), store)
    assert not kernels.made


def test_a_model_that_takes_no_tokens_alone_is_cached_all_the_same(
    kernels: Kernels, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.build("llama")

    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError("wants pixels")

    monkeypatch.setattr(type(model), "__call__", refuse)
    with BlockStore(settings(tmp_path, codec="turbo4")) as store:
        assert PrefixCache(model, store).unsupported_reason is None
    assert not kernels.made
