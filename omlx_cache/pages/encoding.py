"""Codecs on pages: the encoded page, the writer's own encoding before the disk, and kernels that
are compiled before a request needs them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import mlx.core as mx

from omlx_cache.adapters.base import PAGED, TokenRange
from omlx_cache.arrays.mlxio import (
    DTYPES,
    NAMES,
    Array,
    evaluate,
    has_memory_of_its_own,
    host_copy,
    on_host,
)
from omlx_cache.codecs.codec import Codec
from omlx_cache.codecs.identity import check_codec_name
from omlx_cache.codecs.policy import CodecPolicy, LayerKind, LayerShape, is_compiled, warm_up
from omlx_cache.pages.cut import Cutter, PageCut, Source, read_source
from omlx_cache.pages.layout import (
    FLOATS,
    Tag,
    codec_text,
    layout_of,
    page_arrays,
    part_specs,
    tags_of,
)
from omlx_cache.settings import ConfigError
from omlx_cache_storage.format import packing
from omlx_cache_storage.format.packing import wrap
from omlx_cache_storage.page import Page, PageMeta, Tensors, TensorSpec, shared_tensors

_log = logging.getLogger(__name__)

HOST_BATCH_BYTES = 512 << 10
DEVICE_BATCH_BYTES = 256 << 20
"""Bytes that are encoded before MLX evaluates: an encoder's intermediate arrays are several times
its input. On a CPU they should stay in its cache, on a GPU each time costs 0.4 ms."""
HOST_RUN_BYTES = 4 << 20
DEVICE_RUN_BYTES = 1 << 30
"""How much of a run of pages is encoded before its payloads are made."""


def codecs_for(meta: PageMeta, policy: CodecPolicy) -> Mapping[str, Codec]:
    """Return the codec of each dense tensor of a page that the policy encodes; cheap, pure. Packed
    tensors stay as they are."""
    kind: LayerKind = (
        "paged" if meta.group == PAGED.name else "state" if meta.held == 0 else "window"
    )
    return _codecs(shared_tensors(meta.tensors), kind, policy)


@lru_cache(maxsize=256)
def _codecs(tensors: Tensors, kind: LayerKind, policy: CodecPolicy) -> Mapping[str, Codec]:
    known = {spec.name: spec for spec in tensors}
    paths = [
        name.removesuffix(".keys")
        for name, spec in known.items()
        if name.endswith(".keys") and len(spec.shape) == 4 and spec.dtype in FLOATS
        if f"{name.removesuffix('.keys')}.values" in known
    ]
    paths.sort(key=lambda path: [int(part) for part in path.split(".")])
    plan = policy.plan(
        [
            LayerShape(
                kind,
                known[f"{path}.keys"].shape[-1],
                known[f"{path}.values"].shape[-1],
                DTYPES[known[f"{path}.keys"].dtype],
            )
            for path in paths
        ]
    )
    found = {
        f"{path}.{side}": codec
        for path, codecs in zip(paths, plan, strict=True)
        for side, codec in (("keys", codecs.keys), ("values", codecs.values))
        if codec is not None
    }
    return MappingProxyType(found)


def encoded_nbytes(meta: PageMeta, codecs: Mapping[str, Codec]) -> int:
    """Return the payload bytes of the encoded page; computes nothing."""
    return sum(
        part.nbytes
        for spec in meta.tensors
        for part in (part_specs(spec, codecs[spec.name]) if spec.name in codecs else [spec])
    )


def encode_page(page: Page, codecs: Mapping[str, Codec]) -> Page:
    """Return the page with the tensors named in `codecs` encoded; owned and evaluated. The same
    page comes back when there is nothing to encode or a value is out of a codec's range."""
    if codecs.keys().isdisjoint(spec.name for spec in page.meta.tensors):
        return page
    made = _pages([page.meta], page_arrays(page.meta.tensors, page.payload), codecs)
    return page if made is None else made[0]


def run_bytes() -> int:
    return HOST_RUN_BYTES if on_host() else DEVICE_RUN_BYTES


def encode_run(
    cutter: Cutter, run: Sequence[tuple[PageMeta, PageCut]], codecs: Mapping[str, Codec]
) -> list[Page]:
    """Return pages of one length, each behind the one before it, with the tensors named in `codecs`
    encoded; owned and evaluated. A page with a value out of a codec's range stays dense. Takes some
    `DEVICE_RUN_BYTES` beside its result, on the CPU a page or `HOST_RUN_BYTES`."""
    step = max(1, run_bytes() // max(1, run[0][0].nbytes))
    pages: list[Page] = []
    for first in range(0, len(run), step):
        pages += _encode_some(cutter, run[first : first + step], codecs)
    return pages


def _encode_some(
    cutter: Cutter, run: Sequence[tuple[PageMeta, PageCut]], codecs: Mapping[str, Codec]
) -> list[Page]:
    metas = [meta for meta, _ in run]
    span = TokenRange(metas[0].position - metas[0].held, metas[-1].position)
    whole = cutter.tokens(span)
    if whole is None or len(span) != sum(meta.held for meta in metas):
        raise RuntimeError("a run of pages is not held as a whole, or has gaps")
    made = _pages(metas, cutter.views(whole), codecs)
    if made is not None:
        return made
    if len(run) == 1:
        return [Page(run[0][0], cutter.payloads([run[0][1]])[0])]
    return [page for one in run for page in _encode_some(cutter, [one], codecs)]


def _encoded(dense: Mapping[str, Array], codecs: Mapping[str, Codec]) -> dict[str, Array] | None:
    """Return the tensors with their parts in place of the tensors that `codecs` names, or None when
    a value is out of a codec's range. Evaluates; tensors that are encoded alike share arrays."""
    alike: dict[tuple[Codec, mx.Dtype, tuple[int, ...]], list[str]] = {}
    for name, array in dense.items():
        if name in codecs:
            alike.setdefault((codecs[name], array.dtype, array.shape), []).append(name)
    most = HOST_BATCH_BYTES if on_host() else DEVICE_BATCH_BYTES
    parts: dict[str, dict[str, Array]] = {}
    checks: list[Array] = []
    for (codec, _dtype, shape), names in alike.items():
        step = max(1, most // max(1, dense[names[0]].nbytes))
        for first in range(0, len(names), step):
            batch = names[first : first + step]
            stacked = mx.concatenate([dense[name] for name in batch])
            made = codec.encode(stacked)
            checks.append(codec.encodable(stacked, made))
            evaluate([*made.values(), checks[-1]])
            for place, name in zip(range(0, len(batch) * shape[0], shape[0]), batch, strict=True):
                rows = slice(place, place + shape[0])
                parts[name] = {f"{name}.{part}": array[rows] for part, array in made.items()}
    if not all(check.item() for check in checks):
        return None
    own = (parts.get(name, {name: array}) for name, array in dense.items())
    return {name: array for arrays in own for name, array in arrays.items()}


def _pages(
    metas: Sequence[PageMeta], dense: Mapping[str, Array], codecs: Mapping[str, Codec]
) -> list[Page] | None:
    """Return pages of one length, encoded, whose tensors lie behind each other in `dense`; None
    when a value is out of a codec's range. Each owns its payload, evaluated."""
    arrays = _encoded(dense, codecs)
    if arrays is None:
        return None
    held = TokenRange(metas[0].position - metas[0].held, metas[-1].position)
    cutter = Cutter([Source(arrays, dict.fromkeys(arrays, (held,)))])
    cuts: list[PageCut] = []
    for meta in metas:
        cut = cutter.tokens(TokenRange(meta.position - meta.held, meta.position))
        if cut is None:
            raise RuntimeError("what was encoded holds fewer tokens than its pages")
        cuts.append(cut)
    made = {
        name: Tag(codec.identity, NAMES[dense[name].dtype], dense[name].shape[-1])
        for name, codec in codecs.items()
        if name in dense
    }
    codec = codec_text({**tags_of(metas[0]), **made})
    return [
        Page(replace(meta, codec=codec, tensors=cut.tensors), payload)
        for meta, cut, payload in zip(metas, cuts, cutter.payloads(cuts), strict=True)
    ]


def cold_encoder(name: str, min_quantize_tokens: int) -> Callable[[Page], Page] | None:
    """Return the function by which the writer's thread encodes a page for `cold_codec`, one at a
    time, None for pages as they are; encoded ones stay as they are. Raises ConfigError for zstd
    when none is installed."""
    apart = has_memory_of_its_own()
    if name == "dense":
        return _in_host_memory if apart else None
    if name == "zstd":
        if not packing.available():
            raise ConfigError(
                "OMLX_CACHE_COLD_CODEC=zstd needs the extra: pip install 'omlx-cache[zstd]'"
            )
        return (lambda page: wrap(_in_host_memory(page))) if apart else wrap
    policy = CodecPolicy(check_codec_name(name), min_quantize_tokens=min_quantize_tokens)

    def encode(page: Page) -> Page:
        short = page.meta.position < min_quantize_tokens
        made = page if short else encode_page(page, codecs_for(page.meta, policy))
        return _in_host_memory(page) if apart and made is page else made

    return encode


def _in_host_memory(page: Page) -> Page:
    """Return the page with a payload that the host may read. Reading the restores' own payload
    would move it out of the device's memory, and the next restore would wait for it."""
    return page._replace(payload=host_copy(page.payload))


def warm_codecs(
    model: Any, make_cache: Callable[[], list[Any]], policies: Sequence[CodecPolicy]
) -> None:
    """Compile the kernels of the policies' codecs for a model's pages. Blocks for seconds the first
    time on a machine, and does nothing where no kernel is made from source. Never raises. Computes
    one token, as only that tells the sizes: call it on the model's thread."""
    compiled = [policy for policy in policies if is_compiled(policy.name)]
    if not compiled:
        return
    try:
        caches = make_cache()
        logits = model(mx.array([[0]]), cache=caches)
        # A model may keep arrays that it makes on the way; no other thread could evaluate them.
        evaluate([logits, [cache.state for cache in caches]])
        layout = layout_of(caches)
        # In order: which codec a kernel is compared with does not depend on a hash.
        needed: dict[tuple[Codec, int, mx.Dtype], None] = {}
        for group, members in layout.groups.items():
            arrays = read_source(members).arrays
            specs = [TensorSpec(n, NAMES[a.dtype], tuple(a.shape)) for n, a in arrays.items()]
            for policy in compiled:
                codecs = _codecs(Tensors(specs), group.kind, policy)
                needed |= {
                    (c, arrays[n].shape[-1], arrays[n].dtype): None for n, c in codecs.items()
                }
        for codec, dim, dtype in needed:
            warm_up(codec, dim, dtype)
    except Exception as error:
        _log.info("the first request that needs a codec will compile it: %r", error)
