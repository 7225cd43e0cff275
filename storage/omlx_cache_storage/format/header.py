"""The page file: a plain safetensors file whose data section is the payload. `docs/format.md` has
it byte by byte.

There is one way to write a header, compact JSON in one order, and a reader accepts no other: a
flipped bit anywhere is noticed.
"""

import json
from functools import lru_cache
from typing import NamedTuple

import xxhash

from omlx_cache_storage.errors import CorruptPage, PageError, UndecodablePage
from omlx_cache_storage.format import FORMAT_VERSION as FORMAT_VERSION
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import (
    ITEM_BYTES,
    Buffer,
    PageMeta,
    Tensors,
    TensorSpec,
    shared_tensors,
)

ALIGNMENT = 16 * 1024
MAX_HEADER_BYTES = 1024 * 1024
"""Room for some 8,000 tensors: the most that a damaged or hostile length can make a reader
allocate."""
MAX_RANK = 8
MAX_DIMENSION = 2**40
METADATA = "__metadata__"
CHECKSUM = "xxh3-128:"
"""What stands before the hexadecimal digest of a payload."""
payload_digest = xxhash.xxh3_128
LENGTH_BYTES = 8
SHARED_TENSORS = 1024
"""Pages of one group differ in their metadata only: the parsed form of at most so many tensors is
used again for the next page."""
_SHARED_GEOMETRIES = 32
_SHARED_CHARACTERS = 128 * SHARED_TENSORS
_BEGIN = f'{{"{METADATA}":'
_DECODER = json.JSONDecoder()
_compact = json.JSONEncoder(separators=(",", ":")).encode


class Header(NamedTuple):
    meta: PageMeta
    checksum: str
    data_offset: int


def payload_checksum(payload: Buffer) -> str:
    return CHECKSUM + xxhash.xxh3_128_hexdigest(payload)


def encode_header(meta: PageMeta, checksum: str) -> bytes:
    """Return the bytes that precede the payload; their length is a multiple of 16 KiB. Raises
    ValueError for tensor names that a file cannot have, and for too many tensors."""
    entries = (_entries if len(meta.tensors) <= SHARED_TENSORS else _entries.__wrapped__)(
        shared_tensors(meta.tensors)
    )
    fields = _compact(
        {
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
    )
    signed = f'{fields[:-1]},"header_checksum":"{_header_checksum(fields, entries)}"}}'
    rest = f",{entries[1:]}" if meta.tensors else "}"
    text = f"{_BEGIN}{signed}{rest}".encode()
    total = -(-(LENGTH_BYTES + len(text)) // ALIGNMENT) * ALIGNMENT
    if total > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {total} bytes is over the limit of {MAX_HEADER_BYTES}")
    length = total - LENGTH_BYTES
    return length.to_bytes(LENGTH_BYTES, "little") + text.ljust(length)


def header_length(prefix: bytes) -> int:
    """Return how many bytes precede the payload, from a file's first eight bytes; raises
    CorruptPage."""
    if len(prefix) < LENGTH_BYTES:
        raise CorruptPage(f"a page file has at least 8 bytes, this one {len(prefix)}")
    total = int.from_bytes(prefix[:LENGTH_BYTES], "little") + LENGTH_BYTES
    if total % ALIGNMENT or not ALIGNMENT <= total <= MAX_HEADER_BYTES:
        raise CorruptPage(f"a header ends at a multiple of 16 KiB up to 1 MiB, not at {total}")
    return total


def decode_header(raw: bytes) -> Header:
    """Read back a header of `encode_header`: writing the result must give the same bytes. Raises
    UndecodablePage for an undamaged header of a later format, CorruptPage for anything else."""
    total = header_length(raw)
    if len(raw) < total:
        raise CorruptPage(f"the header should have {total} bytes, the file has {len(raw)}")
    try:
        text = raw[LENGTH_BYTES : raw.rindex(b"}", LENGTH_BYTES, total) + 1].decode()
        if not text.startswith(_BEGIN):
            raise CorruptPage("the header does not begin with its metadata")
        fields, end = _DECODER.raw_decode(text, len(_BEGIN))
        if not set(map(type, fields.values())) <= {str}:
            raise CorruptPage("an entry of the header's metadata is not a text")
        entries = "{" + text[end:].removeprefix(",")
        if fields["format"] != str(FORMAT_VERSION):
            raise _other_format(fields, entries)
        meta = PageMeta(
            namespace=BlockKey(bytes.fromhex(fields["namespace"])),
            key=BlockKey(bytes.fromhex(fields["key"])),
            parent=BlockKey(bytes.fromhex(fields["parent"])),
            group=fields["group"],
            position=int(fields["position"]),
            held=int(fields["tokens"]),
            tail=fields["tail"] == "1",
            codec=fields["codec"],
            tensors=(_tensors if len(entries) <= _SHARED_CHARACTERS else _tensors.__wrapped__)(
                entries
            ),
            extra=fields["extra"],
        )
        if encode_header(meta, fields["checksum"]) != raw[:total]:
            raise CorruptPage("the header is not what its own entries and checksum say")
        return Header(meta, fields["checksum"], total)
    except PageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # The repr of a decoding error holds all the bytes that it is about.
        raise CorruptPage(f"the header cannot be read: {type(error).__name__}: {error}") from error


def tensor_spec(name: object, dtype: object, shape: object) -> TensorSpec:
    """Return the tensor that a file describes; raises CorruptPage for what no tensor can be."""
    if not isinstance(name, str) or not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise CorruptPage(f"tensor {name!r:.80} has dtype {dtype!r:.80}")
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_RANK
        or not set(map(type, shape)) <= {int}
        or not 0 <= min(shape, default=0) <= max(shape, default=0) <= MAX_DIMENSION
    ):
        raise CorruptPage(f"tensor {name!r:.80} has shape {shape!r:.80}")
    return TensorSpec(name, dtype, tuple(shape))


def _other_format(fields: dict[str, str], entries: str) -> PageError:
    """Tell a later format from a damaged header: every format keeps `format` and the checksum."""
    stated, given = fields["format"], fields.pop("header_checksum", "")
    message = f"format {stated!r} is not {FORMAT_VERSION}"
    later = stated.isascii() and stated.isdecimal() and int(stated) > FORMAT_VERSION
    if later and given == _header_checksum(_compact(fields), entries):
        return UndecodablePage(message)
    return CorruptPage(message)


@lru_cache(_SHARED_GEOMETRIES)
def _entries(tensors: Tensors) -> str:
    described: dict[str, object] = {}
    offset = 0
    for spec in tensors:
        end = offset + spec.nbytes
        described[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    if len(described) != len(tensors) or METADATA in described:
        raise ValueError(f"tensor names must differ from each other and from {METADATA}")
    return _compact(described)


@lru_cache(_SHARED_GEOMETRIES)
def _tensors(entries: str) -> Tensors:
    tensors = []
    for name, entry in json.loads(entries).items():
        tensors.append(tensor_spec(name, entry["dtype"], entry["shape"]))
    return shared_tensors(tuple(tensors))


def _header_checksum(fields: str, entries: str) -> str:
    return xxhash.xxh3_64_hexdigest(f"[{fields},{entries}]".encode())
