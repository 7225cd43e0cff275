"""The kernels of a model's codecs are compiled before a request needs them."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from omlx_cache.arrays.mlxio import evaluate
from omlx_cache.codecs import Codec, CodecPolicy, LayerShape, is_compiled, warm_up
from omlx_cache.pages.layout import Layout, layout_of
from omlx_cache.pages.tensors import DENSE

_log = logging.getLogger(__name__)


class _Use(NamedTuple):
    codec: Codec
    dim: int
    dtype: mx.Dtype


def warm_codecs(
    model: Any, make_cache: Callable[[], list[Any]], policies: Sequence[CodecPolicy]
) -> None:
    """Compile what the policies' codecs need for a model's pages: blocks for seconds the first time
    on a machine, and does nothing where no kernel is made from source. Never raises.

    Computes one token, as only that tells the sizes: call it on the model's thread.
    """
    compiled = [policy for policy in policies if is_compiled(policy.name)]
    if not compiled:
        return
    try:
        caches = make_cache()
        logits = model(mx.array([[0]]), cache=caches)
        # A model may keep arrays that it makes on the way; no other thread could evaluate them.
        evaluate([logits, [cache.state for cache in caches]])
        for codec, dim, dtype in _needed(layout_of(caches), compiled):
            warm_up(codec, dim, dtype)
    except Exception as error:
        _log.info("the first request that needs a codec will compile it: %r", error)


def _needed(layout: Layout, policies: Iterable[CodecPolicy]) -> list[_Use]:
    """Return the codecs of a used cache's growing leaves, with what they are applied to."""
    shapes = []
    for leaf in layout.leaves:
        arrays = leaf.arrays()
        keys, values = arrays.get("keys"), arrays.get("values")
        if keys is not None and values is not None and keys.ndim == 4:
            dims = keys.shape[-1], values.shape[-1]
            shapes.append(LayerShape(leaf.group.kind, *dims, keys.dtype))
    found: dict[_Use, None] = {}
    for policy in policies:
        for shape, codecs in zip(shapes, policy.plan(shapes), strict=True):
            found[_Use(codecs.keys, shape.key_dim, shape.dtype)] = None
            found[_Use(codecs.values, shape.value_dim, shape.dtype)] = None
    return [use for use in found if use.codec.identity.name != DENSE]
