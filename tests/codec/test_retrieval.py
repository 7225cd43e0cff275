"""A needle in the cached region: answers after the context's KV went through each codec."""

from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from kit.examples import some
from kit.recall import Recall, Through, accuracy, draw, load
from omlx_cache.codecs.identity import check_codec_name
from omlx_cache.codecs.policy import CodecPolicy, LayerShape
from omlx_cache.codecs.turbo import TurboCodec

PAIRS, QUESTIONS, CONTEXTS = 160, 64, 4
LAYERS = [LayerShape("paged", 64, 64, mx.float32)] * 2
LEAST = {
    "dense": 1.0,
    "affine8": 1.0,
    "k8v4": 1.0,
    "turbo4": 1.0,
    "affine4": 0.98,
    "turbo3": 0.98,
    "turbo2": 0.95,
}


@cache
def model() -> Any:
    return load()


@cache
def task() -> Recall:
    return draw(np.random.default_rng(7), CONTEXTS, PAIRS, QUESTIONS)


def through(name: str, dense_last: int | None) -> Through:
    plan = CodecPolicy(check_codec_name(name), dense_last=dense_last).plan(LAYERS)

    def restore(layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        # A side that stays dense has no codec.
        came = (
            array if codec is None else codec.decode(codec.encode(array), array.dtype)
            for codec, array in zip(plan[layer], (keys, values), strict=True)
        )
        return next(came), next(came)

    return restore


@pytest.mark.parametrize("name", some(LEAST, "turbo4"))
def test_codec_on_every_layer_keeps_its_share_of_answers(name: str) -> None:
    assert accuracy(model(), task(), through(name, dense_last=0)) >= LEAST[name]


@pytest.mark.parametrize("name", ["affine8", "k8v4", "turbo4"])
def test_recommended_policies_answer_as_dense_does(name: str) -> None:
    assert accuracy(model(), task(), through(name, dense_last=None)) == 1.0


def swapped_seed(layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
    parts = TurboCodec(64, 4, seed=0).encode(keys)
    return TurboCodec(64, 4, seed=1).decode(parts, keys.dtype), values


def off_by_one(layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
    return mx.roll(keys, 1, axis=2), values


def lost_values(layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
    return keys, mx.zeros_like(values)


@pytest.mark.parametrize("broken", [swapped_seed, off_by_one, lost_values])
def test_broken_codec_loses_the_answers(broken: Through) -> None:
    assert accuracy(model(), task(), broken) < 0.1
