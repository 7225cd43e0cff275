"""Copying what will not last out of a live cache: window tokens and recurrent state."""

import json

from omlx_cache.adapters.base import GroupSpec, TokenRange
from omlx_cache.identity.namespace import Namespace
from omlx_cache.pages.cut import (
    Cutter,
    Source,
    TensorCut,
    cut_tokens,
    cut_whole,
    earliest_held,
    read_source,
)
from omlx_cache.pages.layout import Layout
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page, PageMeta


def page_meta(
    namespace: Namespace,
    chain: KeyChain,
    group: GroupSpec,
    position: int,
    held: int,
    cuts: list[TensorCut],
    *,
    codec: str,
    extra: str = "",
) -> PageMeta:
    """Return the description of a page of `chain` that ends at `position`."""
    return PageMeta(
        namespace=namespace.digest,
        key=chain.key(position),
        parent=chain.parent(position),
        group=group.name,
        position=position,
        held=held,
        tail=position % chain.block_size != 0,
        codec=codec,
        tensors=tuple(cut.spec for cut in cuts),
        extra=extra,
    )


def snapshot_page(
    layout: Layout, namespace: Namespace, chain: KeyChain, group: GroupSpec, position: int
) -> Page | None:
    """Return a page with the state group as it is now, owned; None when it is empty. Evaluates."""
    source = read_source(layout.of(group))
    cuts = cut_whole(source)
    if not cuts:
        return None
    meta = page_meta(namespace, chain, group, position, 0, cuts, codec="dense")
    return Page(meta, Cutter([source]).payload(cuts))


def copy_tokens(layout: Layout, group: GroupSpec, span: TokenRange) -> tuple[TokenRange, Source]:
    """Return owned copies of as many of the last tokens of `span` as the cache still holds."""
    source = read_source(layout.of(group))
    held = TokenRange(earliest_held([source], span), span.stop)
    if not len(held):
        return held, Source({}, {})
    cuts = cut_tokens([source], held)
    assert cuts is not None
    cutter = Cutter([source])
    copies = {cut.spec.name: cutter.array(cut) for cut in cuts}
    return held, Source(copies, dict.fromkeys(copies, (held,)))


def phases_of(layout: Layout, group: GroupSpec) -> str:
    """Return the JSON text of the ring phases of a window group, "" when all are temporal."""
    phases = {
        leaf.path: dict(phase)
        for leaf in layout.of(group)
        if (phase := leaf.adapter.phase(leaf.cache))
    }
    return json.dumps(phases, sort_keys=True, separators=(",", ":")) if phases else ""
