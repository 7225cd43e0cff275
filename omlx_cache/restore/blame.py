"""Which page is to blame when pages that are sound do not fit together."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from omlx_cache.adapters.base import GroupSpec
from omlx_cache.arrays.mlxio import TOKEN_AXIS
from omlx_cache.codecs import codec_named
from omlx_cache.pages.layout import Leaf
from omlx_cache.pages.tensors import refuse_tensors_of_no_leaf, tags_of, wanted_specs
from omlx_cache.restore.lookup import PageUse, RestorePoint
from omlx_cache_storage.errors import ForeignPage, PageError
from omlx_cache_storage.page import Page, PageId, PageMeta

VOTERS = 5
"""Pages of a group that are compared to find the odd one; headers of cold ones are read."""


Form = frozenset[tuple[str, str, tuple[int, ...]]]
"""What a page holds of a group, token counts left out: names, dtypes and shapes."""


def form_of(meta: PageMeta, members: Sequence[Leaf]) -> Form:
    """Return what a page means for its group's leaves; raises ForeignPage if it fits none."""
    refuse_tensors_of_no_leaf(meta, members)
    found = set()
    for leaf in members:
        for spec in wanted_specs(leaf, meta).values():
            shape = list(spec.shape)
            if meta.held and len(shape) > TOKEN_AXIS:
                shape[TOKEN_AXIS] = 0
            found.add((spec.name, spec.dtype, tuple(shape)))
    return frozenset(found)


def misfits(
    failed: PageId,
    point: RestorePoint,
    leaves: Sequence[Leaf],
    held: Mapping[PageId, Page],
    stored: Callable[[PageId], PageMeta] | None,
) -> set[PageId]:
    """Return the pages to forget after pages did not join: those unlike most of their group.

    Without a majority all that were compared are to blame: which one is right cannot be told, and
    a commit writes right ones again. A page that only this build cannot decode is never to blame.
    `stored` reads the header of a cold page, a few at most; None leaves those out. Raises nothing.
    """
    group, uses = _group_of(failed, point)
    members = [leaf for leaf in leaves if leaf.group == group]
    forms: dict[PageId, Form | None] = {}
    for page in _voters(failed, uses, held):
        try:
            if page in held:
                meta = held[page].meta
            elif stored is not None:
                meta = stored(page)
            else:
                continue
        except PageError:
            continue
        if not _is_decodable(meta):
            continue
        try:
            forms[page] = form_of(meta, members)
        except ForeignPage:
            forms[page] = None
    votes = Counter(form for form in forms.values() if form is not None)
    if not forms:
        return set()
    agreed = next((form for form, n in votes.items() if 2 * n > votes.total()), None)
    blamed = {page for page, form in forms.items() if form is None or form != agreed}
    if not blamed and failed in forms:
        # It looks like the others and still could not be joined.
        blamed = {failed}
    return blamed


def _group_of(page: PageId, point: RestorePoint) -> tuple[GroupSpec, Sequence[PageUse]]:
    return next((group, uses) for group, uses in point.uses.items() if group.name == page.group)


def _voters(failed: PageId, uses: Sequence[PageUse], held: Mapping[PageId, Page]) -> list[PageId]:
    others = [use.page for use in uses if use.page != failed]
    others.sort(key=lambda page: page not in held)
    return [failed, *others[: VOTERS - 1]]


def _is_decodable(meta: PageMeta) -> bool:
    try:
        for tag in tags_of(meta).values():
            codec_named(tag.codec)
    except (PageError, ValueError, KeyError):
        return False
    return True
