"""A page's file read whole: by this product's reader, and by the safetensors package beside it."""

import os
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError, deserialize

from omlx_cache.control.rows import PageDetails
from omlx_cache_storage.cold.disk import DISK, FileSystem
from omlx_cache_storage.cold.reader import describes
from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageError, UndecodablePage
from omlx_cache_storage.format.header import decode_header, payload_checksum
from omlx_cache_storage.format.names import PageName, parse_name
from omlx_cache_storage.format.wrapping import unwrapped
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page


def read_file(path: str | Path, fs: FileSystem = DISK) -> bytes:
    """Return a file's bytes; one that is deleted meanwhile is whole all the same."""
    with fs.reading(path) as fd:
        size, parts, came = fs.size(fd), [], 0
        while came < size and (part := fs.read(fd, size - came, came)):
            parts.append(part)
            came += len(part)
        return b"".join(parts)


def checked(raw: bytes, namespace: BlockKey, name: PageName) -> Page:
    """Return the page of a file's bytes, as it lies on the disk; raises PageError unless it is
    whole, undamaged, and the one that its name says."""
    header = decode_header(raw)
    if not describes(unwrapped(header.meta), namespace, name):
        raise ForeignPage("the file holds another page than its name says")
    payload = memoryview(raw)[header.data_offset :]
    if payload.nbytes != header.meta.nbytes:
        raise CorruptPage(
            f"a payload of {payload.nbytes} bytes, its header says {header.meta.nbytes}"
        )
    if payload_checksum(payload) != header.checksum:
        raise CorruptPage("the payload does not match its checksum")
    if _tensors(raw) != {one.name: (one.dtype, [*one.shape]) for one in header.meta.tensors}:
        raise CorruptPage("the safetensors package reads other tensors than its header says")
    return Page(header.meta, payload)


def _tensors(raw: bytes) -> dict[str, tuple[str, list[int]]]:
    """Return the type and shape of each tensor, as the safetensors package reads them."""
    try:
        return {name: (one["dtype"], one["shape"]) for name, one in deserialize(raw)}
    except SafetensorError as error:
        raise CorruptPage(f"the safetensors package refuses the file: {error}") from error


def with_verdict(page: PageDetails) -> PageDetails:
    """Return a page's description with `data`: `verified`, `damaged`, or why it was not read.

    Reads the whole file that the description names; a damaged one has an `error` too.
    """
    if page.error is not None:
        return page
    if not page.path:
        return replace(page, data="not verified: not on disk")
    try:
        _check(page.path)
    except FileNotFoundError:
        return replace(page, data="not verified: evicted meanwhile")
    except UndecodablePage as error:
        return replace(page, data="not verified", error=f"{error.reason}: {error}")
    except OSError as error:
        return replace(page, data="not verified", error=f"unreadable: {error}")
    except PageError as error:
        return replace(page, data="damaged", error=f"{error.reason}: {error}")
    return replace(page, data="verified")


def _check(path: str) -> None:
    name = parse_name(os.path.basename(path))
    namespace = path.split(os.sep)[-3]
    if name is None or len(namespace) != 64:
        raise ForeignPage("the file does not have a page's name")
    checked(read_file(path), BlockKey(bytes.fromhex(namespace)), name)
