"""The page file, byte by byte: a plain safetensors file whose data section is the payload.

    0         8 bytes, little-endian: length of the JSON header that follows
    8         JSON header, padded with spaces: data starts at a multiple of 16 KiB
    n*16384   payload: the tensors in header order, without gaps

`__metadata__` holds strings only, as safetensors demands. `checksum` is the xxh3-128 of the
payload; `header_checksum` is the xxh3-64 of everything else that the header says, so that a
flipped bit in either is noticed.
"""

import json
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from omlx_cache_storage.errors import CorruptPage
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import ITEM_BYTES, Buffer, PageMeta, TensorSpec

FORMAT_VERSION = 1
ALIGNMENT = 16 * 1024
MAX_HEADER_BYTES = 16 * 1024 * 1024
LENGTH_BYTES = 8


class Header(NamedTuple):
    """A decoded header: the page's description, its payload checksum and where data begins."""

    meta: PageMeta
    checksum: str
    data_offset: int


class PayloadDigest:
    """The payload's checksum, fed in pieces in payload order."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def update(self, piece: Buffer) -> None:
        self._state.update(piece)

    def text(self) -> str:
        return "xxh3-128:" + self._state.hexdigest()


def payload_checksum(pieces: Iterable[Buffer]) -> str:
    """Return the checksum text of a payload given in pieces."""
    digest = PayloadDigest()
    for piece in pieces:
        digest.update(piece)
    return digest.text()


def encode_header(meta: PageMeta, checksum: str) -> bytes:
    """Return the bytes that precede the payload; their length is a multiple of 16 KiB."""
    tensors: dict[str, object] = {}
    offset = 0
    for spec in meta.tensors:
        end = offset + spec.nbytes
        tensors[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    fields = _fields(meta, checksum)
    fields["header_checksum"] = _header_checksum(fields, tensors)
    text = json.dumps({"__metadata__": fields, **tensors}, separators=(",", ":")).encode()
    total = -(-(LENGTH_BYTES + len(text)) // ALIGNMENT) * ALIGNMENT
    length = total - LENGTH_BYTES
    return length.to_bytes(LENGTH_BYTES, "little") + text.ljust(length)


def header_length(prefix: bytes) -> int:
    """Return how many bytes precede the payload, from a file's first eight bytes.

    Raises CorruptPage when that cannot be a page of ours.
    """
    if len(prefix) < LENGTH_BYTES:
        raise CorruptPage(f"a page file has at least 8 bytes, this one {len(prefix)}")
    total = int.from_bytes(prefix[:LENGTH_BYTES], "little") + LENGTH_BYTES
    if total % ALIGNMENT or not ALIGNMENT <= total <= MAX_HEADER_BYTES:
        raise CorruptPage(f"a header ends at a multiple of 16 KiB up to 16 MiB, not at {total}")
    return total


def decode_header(raw: bytes) -> Header:
    """Read back what `encode_header` wrote; raises CorruptPage for anything else."""
    total = header_length(raw)
    if len(raw) < total:
        raise CorruptPage(f"the header should have {total} bytes, the file has {len(raw)}")
    try:
        document = json.loads(raw[LENGTH_BYTES:total])
        fields = document.pop("__metadata__")
        header_checksum = fields.pop("header_checksum")
        if header_checksum != _header_checksum(fields, document):
            raise CorruptPage("the header does not match its checksum")
        if fields["format"] != str(FORMAT_VERSION):
            raise CorruptPage(f"format {fields['format']!r} is not {FORMAT_VERSION}")
        meta = PageMeta(
            namespace=BlockKey(bytes.fromhex(fields["namespace"])),
            key=BlockKey(bytes.fromhex(fields["key"])),
            parent=BlockKey(bytes.fromhex(fields["parent"])),
            group=fields["group"],
            position=int(fields["position"]),
            held=int(fields["tokens"]),
            tail=fields["tail"] == "1",
            codec=fields["codec"],
            tensors=_tensors(document),
            extra=fields["extra"],
        )
        return Header(meta, fields["checksum"], total)
    except CorruptPage:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptPage(f"the header cannot be read: {error!r}") from error


def _tensors(document: dict[str, dict[str, object]]) -> tuple[TensorSpec, ...]:
    specs = []
    offset = 0
    for name, entry in document.items():
        dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
        if dtype not in ITEM_BYTES or not isinstance(shape, list):
            raise CorruptPage(f"tensor {name!r} has dtype {dtype!r} and shape {shape!r}")
        if not all(type(n) is int and n >= 0 for n in shape):
            raise CorruptPage(f"tensor {name!r} has shape {shape!r}")
        spec = TensorSpec(name, str(dtype), tuple(shape))
        if span != [offset, offset + spec.nbytes]:
            raise CorruptPage(f"tensor {name!r} lies at {span!r}, not at {offset}")
        offset += spec.nbytes
        specs.append(spec)
    return tuple(specs)


def _fields(meta: PageMeta, checksum: str) -> dict[str, str]:
    return {
        "format": str(FORMAT_VERSION),
        "namespace": meta.namespace.hex(),
        "key": meta.key.hex(),
        "parent": meta.parent.hex(),
        "group": meta.group,
        "position": str(meta.position),
        "tokens": str(meta.held),
        "tail": "1" if meta.tail else "0",
        "codec": meta.codec,
        "extra": meta.extra,
        "checksum": checksum,
    }


def _header_checksum(fields: dict[str, str], tensors: dict[str, object]) -> str:
    canonical = json.dumps([fields, list(tensors.items())], separators=(",", ":"), sort_keys=True)
    return xxhash.xxh3_64_hexdigest(canonical.encode())
