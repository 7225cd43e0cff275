"""The fused kernels: their source is right, one whose bits differ is never used, and they are made
when a model's cache is, not in the first request."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kit import lanes, zoo
from kit.drive import request, settings
from kit.examples import some
from omlx_cache import BlockStore, PrefixCache
from omlx_cache.codecs import turbo, turbo_fused, turbo_source
from omlx_cache.codecs.turbo import TurboCodec

ROWS = 37
"""No multiple of what a warp holds."""


@pytest.mark.skipif(lanes.COMPILER is None, reason="needs a C++20 compiler (g++ or clang++)")
@pytest.mark.parametrize(
    ("dim", "bits", "order"),
    some(
        [(64, 3, 0), (128, 4, 0), (128, 4, 1), (128, 2, 2), (256, 3, 3), (256, 4, 1)], (128, 4, 1)
    ),
)
def test_a_kernel_computes_what_the_plain_form_does(
    tmp_path: Path, dim: int, bits: int, order: int
) -> None:
    corrected = order < 2
    codec = TurboCodec(dim, bits, 1, "corrected" if corrected else "plain")
    signs, edges, levels = map(np.array, codec._tables[:3])
    x = np.random.default_rng(dim).normal(size=(ROWS, dim)).astype(np.float32)
    x[5] = 0
    norms, words = map(np.array, turbo._encode(codec, mx.array(x)))
    kernel = lanes.Lanes(tmp_path, dim, bits, corrected=corrected, order=turbo_source.SUMS[order])
    our_norms, our_words = kernel.encode(x, signs, edges, levels)
    assert np.array_equal(our_words, words)
    np.testing.assert_allclose(our_norms, norms, rtol=2e-6)
    dense = turbo._decode(codec, mx.float32, mx.array(norms), mx.array(words))
    ours = kernel.decode(words, norms, signs, levels)
    assert np.array_equal(ours.view(np.uint32), np.array(dense).view(np.uint32))


class Device:
    """Stands for a back end that compiles kernels: each runs the plain form, `spoil` after it."""

    def __init__(self, codec: TurboCodec) -> None:
        self.codec = codec
        self.made: list[str] = []
        self.runs = 0
        self.spoil: Callable[[list[mx.array]], list[mx.array]] = lambda outputs: outputs

    def make(self, name: str, **_: Any) -> Callable[..., list[mx.array]]:
        self.made.append(name)

        def run(inputs: list[mx.array], output_dtypes: list[mx.Dtype], **_: Any) -> list[mx.array]:
            self.runs += 1
            if "_encode_" in name:
                norms, words = turbo._encode(self.codec, inputs[0])
                return self.spoil([norms.astype(output_dtypes[0]), words])
            words, norms = inputs[:2]
            return self.spoil([turbo._decode(self.codec, output_dtypes[0], norms, words)])

        return run


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device(TurboCodec(64, 4))
    monkeypatch.setattr(turbo_fused, "_maker", lambda: found.make)
    monkeypatch.setattr(turbo_fused, "available", lambda: True)
    monkeypatch.setattr(turbo_fused, "_FOUND", {})
    return found


def vectors() -> mx.array:
    return mx.random.normal((1, 2, 24, 64), key=mx.random.key(3)).astype(mx.bfloat16)


def equal(left: dict[str, mx.array], right: dict[str, mx.array]) -> bool:
    return all(mx.array_equal(left[name], right[name]).item() for name in right)


def expected(codec: TurboCodec) -> tuple[dict[str, mx.array], mx.array]:
    norms, words = turbo._encode(codec, vectors())
    norms = norms.astype(mx.float16)
    return {"norms": norms, "indices": words}, turbo._decode(codec, mx.bfloat16, norms, words)


def test_a_kernel_with_the_plain_forms_bits_is_checked_once_and_used(device: Device) -> None:
    parts, dense = expected(device.codec)
    for seed in (0, 0, 1):
        # Keys and values differ in what a kernel is given, not in the kernel.
        TurboCodec(64, 4, seed).encode(vectors())
    assert len(device.made) == 1
    before = device.runs
    assert equal(device.codec.encode(vectors()), parts)
    assert mx.array_equal(device.codec.decode(parts, mx.bfloat16), dense).item()
    assert device.runs > before
    assert len(device.made) == 2
    assert len(set(device.made)) == 2, "MLX would take one for the other"


@pytest.mark.parametrize("output", [0, 1])
def test_a_kernel_with_one_wrong_bit_is_not_used_and_that_is_logged_once(
    device: Device, caplog: pytest.LogCaptureFixture, output: int
) -> None:
    def spoil(outputs: list[mx.array]) -> list[mx.array]:
        if output < len(outputs):
            array = outputs[output]
            unsigned = {2: mx.uint16, 4: mx.uint32}[array.itemsize]
            flat = array.reshape(-1).view(unsigned)
            flat[1000] = flat[1000] ^ 1
            outputs[output] = flat.view(array.dtype).reshape(array.shape)
        return outputs

    device.spoil = spoil
    parts, _ = expected(device.codec)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert equal(device.codec.encode(vectors()), parts)
    assert len(device.made) == len(turbo_source.SUMS), "every order was tried, once"
    assert [record.message for record in caplog.records if "bits differ" in record.message] == [
        caplog.records[0].message
    ]


def test_a_kernel_that_cannot_be_made_or_run_is_not_used(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: list[mx.array]) -> list[mx.array]:
        raise RuntimeError("no such architecture")

    device.spoil = fail
    parts, dense = expected(device.codec)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert equal(device.codec.encode(vectors()), parts)
            assert mx.array_equal(device.codec.decode(parts, mx.bfloat16), dense).item()
    assert len([r for r in caplog.records if "no such architecture" in r.message]) == 2


@pytest.mark.parametrize("field", ["codec", "cold_codec"])
def test_no_kernel_is_left_to_the_first_request(device: Device, tmp_path: Path, field: str) -> None:
    model = zoo.build("llama")
    for cached in (0, 512):
        with BlockStore(settings(tmp_path, **{field: "turbo4"})) as store:
            cache = PrefixCache(model, store)
            assert len(device.made) == 2, "one to encode and one to decode"
            turn = request(model, cache, [n % 100 for n in range(600)], step=512)
            assert turn.cached >= cached
            assert store.flush(30)
            assert len(device.made) == 2
