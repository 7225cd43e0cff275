"""A whole payload packed losslessly for the disk: the file's one tensor is the packed frame.

Only pages of 2-byte tensors that no codec has encoded are wrapped, and only when that saves a
tenth. What the page held stands in its codec text, so that readers see the page as it was.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from omlx_cache_storage.errors import CorruptPage, UndecodablePage
from omlx_cache_storage.format import planes
from omlx_cache_storage.format.header import tensor_spec
from omlx_cache_storage.page import ITEM_BYTES, Buffer, Page, PageMeta, TensorSpec

_PACKING = "planes/"
_PREFIX = f"{_PACKING}1 "
_DENSE = "dense"


def wrap(page: Page) -> Page:
    """Return the page packed, or the same page when that does not pay; copies nothing then."""
    meta = page.meta
    widths = {ITEM_BYTES[spec.dtype] for spec in meta.tensors if spec.nbytes}
    if meta.codec != _DENSE or widths != {2}:
        return page
    packed = planes.pack(page.payload)
    if packed is None:
        return page
    inner = [[spec.name, spec.dtype, list(spec.shape)] for spec in meta.tensors]
    frame = TensorSpec("planes", "U8", (len(packed),))
    codec = _PREFIX + json.dumps(inner, separators=(",", ":"))
    return Page(replace(meta, codec=codec, tensors=(frame,)), packed)


def is_wrapped(meta: PageMeta) -> bool:
    return meta.codec.startswith(_PREFIX)


def unwrapped(meta: PageMeta) -> PageMeta:
    """Return what a wrapped page held; a page that is not wrapped as it is.

    Raises CorruptPage for a text that cannot be read, UndecodablePage for another version's.
    """
    if not is_wrapped(meta):
        if meta.codec.startswith(_PACKING):
            raise UndecodablePage(f"the packing {meta.codec[:40]!r} is not {_PREFIX.strip()}")
        return meta
    try:
        inner = json.loads(meta.codec.removeprefix(_PREFIX))
        tensors = tuple(tensor_spec(name, dtype, shape) for name, dtype, shape in inner)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptPage(f"the wrapped page's tensors cannot be read: {error}") from error
    inner_meta = replace(meta, codec=_DENSE, tensors=tensors)
    # Whoever reads a page makes room for it first, on the word of this text.
    if not planes.HEADER_BYTES + inner_meta.nbytes // 2 < meta.nbytes < inner_meta.nbytes:
        raise CorruptPage(f"{meta.nbytes} bytes cannot hold a page of {inner_meta.nbytes}")
    return inner_meta


def unwrap_into(frame: Buffer, nbytes: int, pieces: Sequence[Buffer]) -> None:
    """Fill the pieces, payload order, with the payload of `nbytes` that a frame holds; raises
    CorruptPage, or UndecodablePage without a zstd."""
    payload, start = memoryview(planes.unpack(frame, nbytes)), 0
    for piece in pieces:
        view = memoryview(piece)
        if view.nbytes:
            view.cast("B")[:] = payload[start : start + view.nbytes]
        start += view.nbytes
