"""The page file, byte by byte: a plain safetensors file whose data section is the payload.

    0         8 bytes, little-endian: length of the JSON header that follows
    8         JSON header, padded with spaces: data starts at a multiple of 16 KiB
    n*16384   payload: the tensors in header order, without gaps

`__metadata__` holds strings only, as safetensors demands, and comes first. `checksum` is the
xxh3-128 of the payload; `header_checksum`, its last entry, is the xxh3-64 of the JSON text
`[metadata without header_checksum,tensors]`. There is one way to write a header, compact JSON in
this order, and a reader accepts no other: a flipped bit anywhere is noticed.
"""

import json
import re
from collections.abc import Iterable, Mapping
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
"""Room for some 8,000 tensors; what a damaged or hostile length can make a reader allocate."""
MAX_RANK = 8
MAX_DIMENSION = 2**40
METADATA = "__metadata__"
LENGTH_BYTES = 8
SHARED_TENSORS = 1024
"""Pages of one group differ in their metadata only: what was read or written of no more tensors
than these is used again for the next page."""
_SHARED_GEOMETRIES = 32
_SHARED_CHARACTERS = 128 * SHARED_TENSORS
_BEGIN = f'{{"{METADATA}":'
_DECODER = json.JSONDecoder()
_compact = json.JSONEncoder(separators=(",", ":")).encode
_TAILS = ("0", "1")
_FIELDS = (
    "namespace",
    "key",
    "parent",
    "group",
    "position",
    "tokens",
    "tail",
    "codec",
    "extra",
    "checksum",
)
_TEXT = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_METADATA = re.compile(
    re.escape(_BEGIN)
    + rf'(\{{"format":"{FORMAT_VERSION}"'
    + "".join(f',"{name}":{_TEXT}' for name in _FIELDS)
    + r'),"header_checksum":"(?P<header_checksum>[0-9a-f]*)"\}(?=[,}])',
    re.DOTALL,
)
"""A header's metadata as it is written, to be read without a parser: a file is one of hundreds."""


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
    """Return the bytes that precede the payload; their length is a multiple of 16 KiB.

    Raises ValueError for tensor names that a file cannot have, and for too many tensors.
    """
    shared = len(meta.tensors) <= SHARED_TENSORS
    entries = (_entries if shared else _entries.__wrapped__)(shared_tensors(meta.tensors))
    fields = _compact(_fields(meta, checksum))
    signed = f'{fields[:-1]},"header_checksum":"{_header_checksum(fields, entries)}"}}'
    rest = f",{entries[1:]}" if meta.tensors else "}"
    text = f"{_BEGIN}{signed}{rest}".encode()
    total = -(-(LENGTH_BYTES + len(text)) // ALIGNMENT) * ALIGNMENT
    if total > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {total} bytes is over the limit of {MAX_HEADER_BYTES}")
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
        raise CorruptPage(f"a header ends at a multiple of 16 KiB up to 1 MiB, not at {total}")
    return total


def decode_header(raw: bytes) -> Header:
    """Read back what `encode_header` wrote.

    Raises UndecodablePage for an undamaged header of a later format, CorruptPage for anything else.
    """
    total = header_length(raw)
    if len(raw) < total:
        raise CorruptPage(f"the header should have {total} bytes, the file has {len(raw)}")
    try:
        end = raw.rfind(b"}", LENGTH_BYTES, total) + 1
        text = raw[LENGTH_BYTES:end].decode()
        found = _METADATA.match(text)
        if found is None:
            raise _not_ours(text)
        signed, namespace, key, parent, group, position, tokens, tail, codec, extra, checksum = (
            found.groups()[:11]
        )
        entries = "{" + text[found.end() :].removeprefix(",")
        shared = len(entries) <= _SHARED_CHARACTERS
        meta = PageMeta(
            namespace=_block_key(namespace),
            key=_block_key(key),
            parent=_block_key(parent),
            group=_text(group),
            position=_number(position),
            held=_number(tokens),
            tail=tail == _TAILS[True],
            codec=_text(codec),
            tensors=(_tensors if shared else _tensors.__wrapped__)(entries),
            extra=_text(extra),
        )
        if (
            found["header_checksum"] != _header_checksum(signed + "}", entries)
            or tail not in _TAILS
            or total - end >= ALIGNMENT
            or raw[end:total] != b" " * (total - end)
        ):
            raise _not_its_own()
        return Header(meta, _text(checksum), total)
    except PageError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # The repr of a decoding error holds all the bytes that it is about.
        what = f"{type(error).__name__}: {error}"
        raise CorruptPage(f"the header cannot be read: {what}") from error


def tensor_spec(name: object, dtype: object, shape: object) -> TensorSpec:
    """Return the tensor that a file describes; raises CorruptPage for what no tensor can be."""
    if not isinstance(name, str) or not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise CorruptPage(f"tensor {name!r:.80} has dtype {dtype!r:.80}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(map(_is_dimension, shape)):
        raise CorruptPage(f"tensor {name!r:.80} has shape {shape!r:.80}")
    return TensorSpec(name, dtype, tuple(shape))


def _block_key(text: str) -> BlockKey:
    key = bytes.fromhex(text)
    if key.hex() != text:
        raise _not_its_own()
    return BlockKey(key)


def _number(text: str) -> int:
    number = int(text)
    if str(number) != text:
        raise _not_its_own()
    return number


def _text(text: str) -> str:
    """Return what a JSON text between quotes says; raises CorruptPage unless it is written so."""
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    said: str = json.loads(f'"{text}"', strict=False)
    if _compact(said) != f'"{text}"':
        raise _not_its_own()
    return said


def _not_its_own() -> CorruptPage:
    return CorruptPage("the header is not what its own entries and checksum say")


def _not_ours(text: str) -> PageError:
    """Say what is wrong with a header's text that is not as it would be written now."""
    if not text.startswith(_BEGIN):
        return CorruptPage("the header does not begin with its metadata")
    fields, end = _DECODER.raw_decode(text, len(_BEGIN))
    if not set(map(type, fields.values())) <= {str}:
        return CorruptPage("an entry of the header's metadata is not a text")
    if fields["format"] == str(FORMAT_VERSION):
        return _not_its_own()
    return _other_format(fields, json.loads("{" + text[end:].removeprefix(",")))


def _other_format(fields: dict[str, str], tensors: Mapping[str, object]) -> PageError:
    """Tell a later format from a damaged header: every format keeps `format` and the checksum."""
    stated, given = fields["format"], fields.pop("header_checksum", "")
    message = f"format {stated!r} is not {FORMAT_VERSION}"
    later = stated.isascii() and stated.isdecimal() and int(stated) > FORMAT_VERSION
    if later and given == _header_checksum(_compact(fields), _compact(tensors)):
        return UndecodablePage(message)
    return CorruptPage(message)


@lru_cache(_SHARED_GEOMETRIES)
def _entries(tensors: Tensors) -> str:
    """Return the text that describes a page's tensors; raises ValueError for names that no file
    can have."""
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
    """Return the tensors that a text describes; raises CorruptPage, or what JSON does."""
    specs = []
    offset = 0
    for name, entry in json.loads(entries).items():
        span = entry["data_offsets"]
        spec = tensor_spec(name, entry["dtype"], entry["shape"])
        if span != [offset, offset + spec.nbytes]:
            raise CorruptPage(f"tensor {name!r:.80} lies at {span!r:.80}, not at {offset}")
        offset += spec.nbytes
        specs.append(spec)
    tensors = shared_tensors(tuple(specs))
    if _entries.__wrapped__(tensors) != entries:
        raise _not_its_own()
    return tensors


def _is_dimension(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_DIMENSION


def _fields(meta: PageMeta, checksum: str) -> dict[str, str]:
    return {
        "format": str(FORMAT_VERSION),
        "namespace": meta.namespace.hex(),
        "key": meta.key.hex(),
        "parent": meta.parent.hex(),
        "group": meta.group,
        "position": str(meta.position),
        "tokens": str(meta.held),
        "tail": _TAILS[meta.tail],
        "codec": meta.codec,
        "extra": meta.extra,
        "checksum": checksum,
    }


def _header_checksum(fields: str, entries: str) -> str:
    return xxhash.xxh3_64_hexdigest(f"[{fields},{entries}]".encode())
