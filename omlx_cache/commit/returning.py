"""Pages that left memory because a live cache held their tokens come back when that one goes."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from omlx_cache.adapters.base import TokenRange, paged_of
from omlx_cache.commit.admission import Admission
from omlx_cache.commit.capture import page_meta, phases_of
from omlx_cache.identity.namespace import Namespace
from omlx_cache.pages.cut import Cutter
from omlx_cache.pages.geometry import PageCut, read_source
from omlx_cache.pages.layout import Layout
from omlx_cache.pages.tensors import codec_text, live_tags
from omlx_cache_storage.keys import KeyChain
from omlx_cache_storage.page import Page, PageId, PageMeta


class _Cut(NamedTuple):
    """A page to be made: what it says of itself, and where its bytes come from."""

    meta: PageMeta
    cut: PageCut


def bring_back(
    admission: Admission, namespace: Namespace, chain: KeyChain, layout: Layout, end: int
) -> None:
    """Cut the blocks of the growing layers up to `end` again that memory could have and only the
    disk has, the root first, until there is no room. Waits for nothing, writes nothing.

    Of windows and recurrent state the live cache has only what a commit stores anyway: the end's.
    """
    group = paged_of(layout.groups)
    if group is None:
        return
    ends = group.page_ends(end, chain.block_size)
    left = admission.left_memory(PageId(chain.key(stop), group.name) for stop in ends)
    if not left:
        return
    leaves = layout.of(group)
    tags, extra = codec_text(live_tags(leaves)), phases_of(layout, group)
    cutter = Cutter([read_source(leaves)])
    run = []
    for stop in ends:
        span = TokenRange(chain.block_start(stop), stop)
        cut = cutter.geometry.tokens(span) if PageId(chain.key(stop), group.name) in left else None
        if cut is not None:
            meta = page_meta(
                namespace, chain, group, stop, len(span), cut.tensors, codec=tags, extra=extra
            )
            run.append(_Cut(meta, cut))
    # The last one may be a tail.
    for _size, same in groupby(run, key=lambda planned: planned.meta.nbytes):
        if not _put_back(admission, cutter, list(same)):
            return


def _put_back(admission: Admission, cutter: Cutter, run: Sequence[_Cut]) -> bool:
    """Store pages of one size; False when one had no room."""
    done = 0

    def make(count: int) -> list[Page]:
        part = run[done : done + count]
        payloads = cutter.payloads([planned.cut for planned in part])
        return [Page(p.meta, payload) for p, payload in zip(part, payloads, strict=True)]

    while done < len(run):
        count = admission.put_back([planned.meta for planned in run[done:]], make)
        if not count:
            return False
        done += count
    return True
