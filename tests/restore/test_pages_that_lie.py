"""Pages with right checksums that say what cannot be: each is the page that failed, and no more."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from omlx_cache.restore.plan import PageFailed
from omlx_cache_storage.page import Page, PageMeta, TensorSpec
from qa.fuzz import files as pages
from qa.fuzz import restored

Edit = Callable[[PageMeta], PageMeta]


def _tags(edit: Callable[[dict[str, Any]], object]) -> Edit:
    def change(meta: PageMeta) -> PageMeta:
        tags = json.loads(meta.codec)
        return replace(meta, codec=json.dumps(edit(tags) or tags))

    return change


def _without(meta: PageMeta, ending: str) -> PageMeta:
    kept = tuple(spec for spec in meta.tensors if not spec.name.endswith(ending))
    return replace(meta, tensors=kept)


def _batch(meta: PageMeta) -> PageMeta:
    return replace(meta, tensors=tuple(replace(s, shape=(2, *s.shape[1:])) for s in meta.tensors))


def _shorter(meta: PageMeta) -> PageMeta:
    shape = (1, 2, pages.TOKENS - 1, 64)
    return replace(meta, tensors=tuple(replace(s, shape=shape) for s in meta.tensors))


def _flat(meta: PageMeta) -> PageMeta:
    return replace(meta, tensors=(TensorSpec("0.keys", "BF16", (1, 64)), *meta.tensors[1:]))


MANY = {f"{n}.keys": [f"turbo-mse/1(seed={n})", "BF16", 64] for n in range(40)}
LIES: dict[str, tuple[PageMeta, Edit]] = {
    "codec nests": (pages.affine(), lambda m: replace(m, codec="[" * 2000)),
    "codec is a list": (pages.affine(), lambda m: replace(m, codec="[]")),
    "tag is a map": (pages.affine(), _tags(lambda t: t.update({"0.keys": {"a": 1}}))),
    "channels are text": (pages.affine(), _tags(lambda t: t["0.keys"].__setitem__(2, "64"))),
    "channels are giant": (pages.affine(), _tags(lambda t: t["0.keys"].__setitem__(2, 2**40))),
    "channels are none": (pages.affine(), _tags(lambda t: t["0.keys"].__setitem__(2, 0))),
    "dtype is a list": (pages.affine(), _tags(lambda t: t["0.keys"].__setitem__(1, ["F16"]))),
    "codec is another": (pages.affine(), _tags(lambda t: t["0.keys"].__setitem__(0, "dense/1"))),
    "codecs without end": (pages.affine(), _tags(lambda t: MANY)),
    "a part is missing": (pages.affine(), lambda m: _without(m, ".biases")),
    "no tensors": (pages.plain(), lambda m: _without(m, "")),
    "a batch": (pages.plain(), _batch),
    "fewer tokens": (pages.plain(), _shorter),
    "no token axis": (pages.plain(), _flat),
    "a batch of states": (pages.snapshot(), _batch),
    "phases nest": (pages.window(), lambda m: replace(m, extra="[" * 2000)),
    "phases are a list": (pages.window(), lambda m: replace(m, extra="[1]")),
    "phases are no JSON": (pages.window(), lambda m: replace(m, extra="x")),
    "a phase is text": (pages.window(), lambda m: replace(m, extra='{"0":{"index":"8"}}')),
    "a phase is a list": (pages.window(), lambda m: replace(m, extra='{"0":[1]}')),
}
CACHES = {
    "paged": [lambda: KVCache(), lambda: QuantizedKVCache(group_size=64, bits=4)],
    "state": [lambda: ArraysCache(2)],
    "window12k4": [lambda: RotatingKVCache(12, keep=4)],
}


def _page(meta: PageMeta) -> Page:
    return restored.in_memory(meta, pages.payload(meta))


@pytest.mark.parametrize("kind", [pages.plain, pages.affine, pages.snapshot, pages.window])
def test_an_honest_page_is_restored(kind: Callable[[], PageMeta]) -> None:
    meta = kind()
    for make in CACHES[meta.group]:
        cache = make()
        restored.restore(_page(meta), cache)
        assert cache.offset == pages.TOKENS if meta.held else cache.cache[0] is not None


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_a_page_that_failed(lie: str) -> None:
    honest, edit = LIES[lie]
    meta = edit(honest)
    for make in CACHES[meta.group]:
        with pytest.raises(PageFailed) as caught:
            restored.restore(_page(meta), make())
        assert caught.value.page == meta.id


@pytest.mark.parametrize("index", [-1, 3, 12, 2**40])
def test_a_ring_index_that_no_ring_has_is_not_taken_over(index: int) -> None:
    cache = RotatingKVCache(12, keep=4)
    meta = replace(pages.window(), extra=json.dumps({"0": {"index": index}}))
    restored.restore(_page(meta), cache)
    assert cache._idx == 12
