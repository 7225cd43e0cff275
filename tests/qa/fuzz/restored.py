"""A page with right checksums and any content, on its way into a model's caches: codec texts, ring
phases, tensors. It is restored whole, or it is the page that failed; nothing else comes of it."""

import json
from collections.abc import Callable
from math import prod
from random import Random
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from kit.storage.signed import signed_header, split_header
from kit.units import MIB
from omlx_cache.pages.layout import layout_of
from omlx_cache.restore.lookup import PageUse, RestorePoint
from omlx_cache.restore.pending import rebuild
from omlx_cache.restore.plan import PageFailed, Plan, make_plan
from omlx_cache.restore.reading import Walk
from omlx_cache.restore.targets import HostTargets
from omlx_cache_storage.errors import ForeignPage, PageError
from omlx_cache_storage.format.header import decode_header
from omlx_cache_storage.keys import KeyChain, as_tokens
from omlx_cache_storage.page import ITEM_BYTES, Page, PageId, PageInfo, PageMeta
from omlx_cache_storage.prefetch import ReadingTiers

from . import files
from .mutate import spoil_value
from .run import Target, refused

_ROOM = 1024
"""How many times its size a page may claim of a model's buffers: 2 bits to 32, 16 tokens to 512."""


CACHES: tuple[Callable[[], Any], ...] = (
    lambda: KVCache(),
    lambda: QuantizedKVCache(group_size=64, bits=4),
    lambda: ArraysCache(2),
    lambda: RotatingKVCache(12, keep=4),
)


class _Source:
    """The store of a page that is in memory already."""

    def __init__(self, held: Page) -> None:
        self._held = held

    def meta(self, page: PageId) -> PageMeta:
        return self._held.meta

    def touch(self, *_: object) -> None:
        pass

    def forget(self, page: PageId) -> None:
        assert page == self._held.meta.id


def one(data: bytes) -> bool:
    accepted = False
    for make in CACHES:
        accepted = _one(data, make()) or accepted
    return accepted


def _one(data: bytes, cache: Any) -> bool:
    try:
        header = decode_header(data)
    except PageError as error:
        return refused(error)
    meta, payload = header.meta, data[header.data_offset :]
    (group,) = layout_of([cache]).groups
    # The index and the walk ask only for what a name says, and a reader compares the sizes.
    if (meta.group, meta.position, meta.tail) != (group.name, files.TOKENS, False):
        return False
    if meta.nbytes != len(payload) or meta.held != (0 if group.kind == "state" else files.TOKENS):
        return False
    try:
        restore(in_memory(meta, payload), cache)
    except PageFailed as failed:
        if failed.page != meta.id:
            raise
        return refused(failed.cause)
    return True


def in_memory(meta: PageMeta, payload: bytes) -> Page:
    """Return a page as the hot tier holds it."""
    array = mx.array(list(payload), dtype=mx.uint8)
    mx.eval(array)
    return Page(meta, array)


def restore(page: Page, cache: Any) -> None:
    """Bring a page into a fresh cache by the way of every restore; raises PageFailed."""
    meta = page.meta
    (group,) = layout_of([cache]).groups
    info = PageInfo(meta.position, meta.held, meta.nbytes, "hot")
    point = RestorePoint(meta.position, {group: (PageUse(meta.id, info),)}, None, meta.position)
    chain = KeyChain(meta.namespace, as_tokens(range(files.TOKENS)), files.TOKENS)
    source = cast(ReadingTiers, _Source(page))
    walk = Walk(source, [cache], chain, files.TOKENS, files.TOKENS + 1, frozenset())
    held, adapter = {meta.id: page}, walk.layout.leaves[0].adapter
    try:
        plan = make_plan(walk.layout.groups, point, walk.capacity, walk.models, source.meta)
        assert plan.nbytes <= _ROOM * max(meta.nbytes, 64), "more room than a page can fill"
        targets = HostTargets(plan)
        for read in plan.reads:
            targets.take_all([read], held)
        _rebuild(plan, targets)
    except PageFailed as failed:
        walk.learn(failed, point, source.meta)
        raise
    mx.eval(list(adapter.arrays(cache).values()))
    if group.kind != "state":
        assert adapter.position(cache) == meta.position
        sum(map(len, adapter.held(cache)))


def _rebuild(plan: Plan, targets: HostTargets) -> None:
    """A page without a tensor that its cache class needs is what only its adapter can notice."""
    try:
        rebuild(plan, targets.arrays())
    except KeyError as error:
        raise PageFailed(next(iter(plan.reads)).use.page, ForeignPage(str(error))) from error


def vary(rng: Random, sample: bytes) -> bytes:
    """Return a page whose tensors, codec text or ring phases are spoilt, with as much payload."""
    fields, tensors = split_header(sample)
    kind = rng.random()
    if kind < 0.4 and fields["codec"].startswith("{"):
        tags = spoil_value(rng, json.loads(fields["codec"]))
        if rng.random() < 0.2:
            tags = {name: [f"turbo-mse/1(bits=4,dim={rng.choice((64, 65, 100))},norm=plain,seed=1)",
                           "BF16", 64] for name in json.loads(fields["codec"])}  # fmt: skip
        fields["codec"] = _text(tags)
    elif kind < 0.5:
        fields["codec"] = rng.choice(
            ("", "{}", "[]", "[" * 2000, "planes", "9" * 5000, '{"0.keys":1}',
             '{"0.keys":["dense/1","F16",64]}', '{"0.keys":{"a":1,"b":2,"c":3}}',
             '{"0.keys":"abc"}')
        )  # fmt: skip
    elif kind < 0.6:
        phases = rng.choice(({"0": {"index": 8}}, {"0": {}}, {"1": {"index": 5}}))
        fields["extra"] = rng.choice((_text(spoil_value(rng, phases)), "[" * 2000, "[]", "7", "x"))
    else:
        entries = [[name, t["dtype"], t["shape"]] for name, t in tensors.items()]
        made = spoil_value(rng, entries)
        listed = made if isinstance(made, list) else []
        spoilt = [entry for entry in listed if isinstance(entry, list) and len(entry) == 3]
        tensors = {str(name): {"dtype": dtype, "shape": shape} for name, dtype, shape in spoilt}
    return _assembled(fields, tensors)


def _assembled(fields: dict[str, Any], tensors: dict[str, Any]) -> bytes:
    """Return a header and a payload that agree, as far as the tensors have a size."""
    end = 0
    for entry in tensors.values():
        shape, dtype = entry["shape"], entry["dtype"]
        sound = isinstance(shape, list) and all(type(n) is int for n in shape)
        width = ITEM_BYTES.get(dtype, 0) if isinstance(dtype, str) else 0
        size = prod(shape) * width if sound else 0
        entry["data_offsets"] = [end, end + size]
        end += size
    try:
        return signed_header(fields, tensors) + bytes(end if 0 <= end < MIB else 0)
    except (ValueError, TypeError):
        return b""


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def samples() -> list[bytes]:
    kinds = [files.plain(), files.snapshot(), files.window(), files.affine()]
    return [files.file_of(Page(kind, files.payload(kind))) for kind in kinds]


TARGET = Target("restored", samples, vary, one, constant=80 * MIB, seconds=20.0, share=0.2)
