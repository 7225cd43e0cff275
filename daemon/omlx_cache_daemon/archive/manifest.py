"""The first member of an archive: what is in it, whose pages these are, and who wrote it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from omlx_cache_storage.errors import CacheError
from omlx_cache_storage.format import FORMAT_VERSION
from omlx_cache_storage.keys import BlockKey, namespace_digest

MANIFEST_FILE = "omlx-cache.json"
FORMAT = "omlx-cache archive"
VERSION = 1
MAX_MANIFEST_BYTES = 16 * 1024 * 1024
MOST_PAGES = 1 << 40
_DIGEST_BYTES = 32
_OMITTED = "omitted"
_LABEL = "label"

Document = Mapping[str, object]


class ArchiveError(CacheError):
    """An archive is not one of ours, is damaged, or ends too early; the text says where."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds: `pages` files of `nbytes` at most, fewer when some left the directory
    while it was written. `what` names them for people, `namespaces` has their documents."""

    what: str
    pages: int
    nbytes: int
    namespaces: Mapping[BlockKey, Document] = field(default_factory=dict)
    tool: str = ""


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the member's content; raises ArchiveError for documents of more than 16 MiB."""
    raw = json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "page_format": FORMAT_VERSION,
            "tool": manifest.tool,
            "what": manifest.what,
            "pages": manifest.pages,
            "bytes": manifest.nbytes,
            "namespaces": {
                digest.hex(): dict(document) for digest, document in manifest.namespaces.items()
            },
        },
        indent=1,
    ).encode()
    if len(raw) > MAX_MANIFEST_BYTES:
        raise ArchiveError("these are too many namespaces for one archive: name fewer")
    return raw


def decode_manifest(raw: bytes) -> Manifest:
    """Read back what `encode_manifest` wrote; raises ArchiveError for anything else, and for
    documents that are not their namespaces'."""
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{MANIFEST_FILE} cannot be read: {type(error).__name__}") from error
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ArchiveError(f"{MANIFEST_FILE} does not say that this is an {FORMAT}")
    version, pages, nbytes = said.get("version"), said.get("pages"), said.get("bytes")
    if not _is_count(version) or version != VERSION:
        raise ArchiveError(
            f"this is an archive of version {version!r:.20}, and version {VERSION} can be read "
            "here: use the version of omlx-cache that wrote it, or a later one"
        )
    if not _is_count(pages) or not _is_count(nbytes):
        raise ArchiveError(f"{MANIFEST_FILE} does not say how many pages there are")
    what, tool = (said.get(name) for name in ("what", "tool"))
    return Manifest(
        what if isinstance(what, str) else "",
        pages,
        nbytes,
        _namespaces(said.get("namespaces")),
        tool if isinstance(tool, str) else "",
    )


def _namespaces(said: object) -> dict[BlockKey, Document]:
    if not isinstance(said, dict):
        raise ArchiveError(f"{MANIFEST_FILE} has no namespaces")
    found: dict[BlockKey, Document] = {}
    for digits, document in said.items():
        digest = _digest(digits)
        if digest is None or not isinstance(document, dict) or not _is_its_own(digest, document):
            raise ArchiveError(f"{MANIFEST_FILE}: {digits[:80]!r} has a document of something else")
        found[digest] = document
    return found


def _digest(digits: str) -> BlockKey | None:
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        return None
    return BlockKey(raw) if len(raw) == _DIGEST_BYTES and raw.hex() == digits else None


def _is_its_own(digest: BlockKey, document: Document) -> bool:
    """True unless a document is whole, and is not what a digest was made from."""
    fields = {name: value for name, value in document.items() if name != _LABEL}
    if not fields or any(isinstance(v, dict) and _OMITTED in v for v in fields.values()):
        return True
    try:
        return namespace_digest(fields) == digest
    except (TypeError, ValueError, RecursionError):
        return False


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_PAGES * 8
