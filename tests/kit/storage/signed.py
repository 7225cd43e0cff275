"""Headers and frames with right checksums and any content: what an attacker can write."""

import json
import struct
from typing import Any

import xxhash

from omlx_cache_storage.format.header import ALIGNMENT
from omlx_cache_storage.format.packing import MAGIC


def raw_header(text: bytes) -> bytes:
    """Return a header of this text, padded as the format demands."""
    total = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT
    return (total - 8).to_bytes(8, "little") + text.ljust(total - 8)


def signed_header(fields: dict[str, Any], tensors: dict[str, Any]) -> bytes:
    """Return a header of these entries whose own checksum is right."""
    fields = {name: value for name, value in fields.items() if name != "header_checksum"}
    signature = xxhash.xxh3_64_hexdigest(f"[{_compact(fields)},{_compact(tensors)}]".encode())
    document = {"__metadata__": {**fields, "header_checksum": signature}, **tensors}
    return raw_header(_compact(document).encode())


def split_header(raw: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a sound header's metadata and tensor entries."""
    length = int.from_bytes(raw[:8], "little")
    document = json.loads(raw[8 : 8 + length])
    return document.pop("__metadata__"), document


def signed_planes(
    size: int, high_size: int, checksum: int, planes: bytes, magic: bytes = MAGIC
) -> bytes:
    """Return a frame of byte planes whose own header has a right checksum."""
    fields = struct.pack("<8sQQQ", magic, size, high_size, checksum)
    return fields + struct.pack("<Q", xxhash.xxh3_64_intdigest(fields)) + planes


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
