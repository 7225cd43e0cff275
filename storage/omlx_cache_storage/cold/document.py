"""The readable document of a namespace: what its digest was made from, bounded in size."""

import hashlib
import json
from collections.abc import Mapping

from omlx_cache_storage.cold.disk import FileSystem, StrPath

MAX_DOCUMENT_BYTES = 1024 * 1024
"""What a reader takes into memory; a larger file is no document of ours."""


def encode_document(document: Mapping[str, object]) -> bytes:
    """Return a namespace document's file content, at most `MAX_DOCUMENT_BYTES` long.

    Fields are whole as long as that fits; after that the largest of them are replaced by their
    digests, so that those that say whose pages these are stay readable.
    """
    shown = dict(document)
    sizes = {name: len(_json(value)) for name, value in shown.items()}
    raw = _json(shown)
    for name in sorted(shown, key=lambda name: -sizes[name]):
        if len(raw) < MAX_DOCUMENT_BYTES:
            break
        shown[name] = _digest(shown[name])
        raw = _json(shown)
    return raw + b"\n" if len(raw) < MAX_DOCUMENT_BYTES else b"{}\n"


def read_document(path: StrPath, fs: FileSystem) -> dict[str, object]:
    """Return a namespace's document, {} for a file that is missing, unreadable or too large."""
    try:
        fd = fs.open(path)
        try:
            raw = fs.read(fd, MAX_DOCUMENT_BYTES + 1, 0)
        finally:
            fs.close(fd)
        document = json.loads(raw) if len(raw) <= MAX_DOCUMENT_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def read_map(path: StrPath, fs: FileSystem, most: int = MAX_DOCUMENT_BYTES) -> dict[str, object]:
    """Return a small file's map, {} for one that is missing, torn, longer than `most` or somebody
    else's; raises OSError where the disk refuses."""
    try:
        fd = fs.open(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        raw = fs.read(fd, most + 1, 0)
    finally:
        fs.close(fd)
    try:
        document = json.loads(raw) if len(raw) <= most else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def has_fields(document: Mapping[str, object], fields: Mapping[str, object]) -> bool:
    """True when a document says these values, in full or by their digests."""
    return all(
        name in document and document[name] in (value, _digest(value))
        for name, value in fields.items()
    )


def _digest(value: object) -> dict[str, object]:
    return {"omitted": "too large", "sha256": hashlib.sha256(_json(value)).hexdigest()}


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True, default=str).encode()
