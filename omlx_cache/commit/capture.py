"""What a page of a live cache says of itself, and recurrent state as a page."""

import json

from omlx_cache.adapters.base import GroupSpec
from omlx_cache.identity.namespace import Namespace
from omlx_cache.pages.layout import Layout
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import PageMeta, Tensors


def page_meta(
    namespace: Namespace,
    chain: KeyChain,
    group: GroupSpec,
    position: int,
    held: int,
    tensors: Tensors,
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
        tensors=tensors,
        extra=extra,
    )


def phases_of(layout: Layout, group: GroupSpec) -> str:
    """Return the JSON text of the ring phases of a window group, "" when all are temporal."""
    phases = {
        leaf.path: dict(phase)
        for leaf in layout.of(group)
        if (phase := leaf.adapter.phase(leaf.cache))
    }
    return json.dumps(phases, sort_keys=True, separators=(",", ":")) if phases else ""
