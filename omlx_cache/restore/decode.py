"""Encoded pages: a page's tensors in the form that a target wants.

What cannot be brought into it exactly raises ForeignPage: a miss.
"""

from collections.abc import Iterator, Mapping, Sequence

from omlx_cache.arrays.mlxio import Array, dtype_name, dtype_of, evaluate
from omlx_cache.codecs import Codec, codec_named
from omlx_cache.pages.tensors import Tag, Tags, page_arrays, tags_of
from omlx_cache.restore.columns import batches_of
from omlx_cache_storage.errors import ForeignPage
from omlx_cache_storage.page import Page, TensorSpec

HOST_BATCH_BYTES = 512 << 10
"""What is decoded on the CPU before MLX is asked to evaluate: what stays in a core's cache."""


def convert(
    page: Page,
    expected: Sequence[TensorSpec],
    codecs: Mapping[str, Codec],
    most: int | None = None,
) -> Iterator[dict[str, Array]]:
    """Yield a page's tensors by name in the form that is expected, evaluated, some `most` bytes at
    a time, or `HOST_BATCH_BYTES`; raises ForeignPage.

    Parts are decoded for a dense target; a dense tensor is packed with `codecs` (by dense name)
    for a packed one. Packed tensors never take a dense detour.
    """
    arrays = page_arrays(page)
    tags = tags_of(page.meta)
    specs = {spec.name: spec for spec in expected}
    seen: set[str] = set()
    for batch in batches_of(expected, most or HOST_BATCH_BYTES):
        made: dict[str, Array] = {}
        for spec in batch:
            if spec.name not in seen:
                found = converted(spec, arrays, tags, codecs)
                made |= {name: array for name, array in found.items() if name in specs}
                seen |= found.keys()
        for name, array in made.items():
            _refuse_other_shape(array, specs[name])
        evaluate(list(made.values()))
        yield made


def _refuse_other_shape(array: Array, spec: TensorSpec) -> None:
    if tuple(array.shape) != spec.shape or dtype_name(array) != spec.dtype:
        raise ForeignPage(
            f"{spec.name} is {dtype_name(array)} {tuple(array.shape)}, "
            f"{spec.dtype} {spec.shape} was expected"
        )


def converted(
    spec: TensorSpec, arrays: Mapping[str, Array], tags: Tags, codecs: Mapping[str, Codec]
) -> dict[str, Array]:
    """Return a lazy tensor in the form of `spec` (and what was made with it), any token count."""
    base = spec.name.rpartition(".")[0]
    if spec.name in arrays and (base not in codecs or _same(tags.get(base), codecs[base])):
        return {spec.name: arrays[spec.name]}
    if spec.name in tags:
        tag = tags[spec.name]
        prefix = f"{spec.name}."
        parts = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        try:
            dense = codec_named(tag.codec).decode(parts, dtype_of(tag.dtype))
        except (ValueError, KeyError) as error:
            raise ForeignPage(f"{spec.name} cannot be decoded: {error}") from error
        return {spec.name: dense}
    if base in arrays and base in codecs:
        parts = codecs[base].encode(arrays[base])
        return {f"{base}.{part}": array for part, array in parts.items()}
    raise ForeignPage(f"the page has no {spec.name} and nothing to make it from")


def _same(tag: Tag | None, codec: Codec) -> bool:
    return tag is not None and tag.codec == str(codec.identity)
