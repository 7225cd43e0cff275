"""What other machines and programs send: archives, values of a remote store, API messages."""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache, partial
from random import Random
from typing import Any

from kit.units import MIB
from omlx_cache.control.errors import CHANGES, STORE, ControlError
from omlx_cache.status.routes import ROUTES, Routes
from omlx_cache_daemon.archive import (
    MANIFEST_FILE,
    Archive,
    ArchiveError,
    Document,
    Manifest,
    PageAt,
    decode_manifest,
    encode_manifest,
)
from omlx_cache_daemon.checking import checked
from omlx_cache_daemon.client import as_map, as_maps, decode_answer, encode_request
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.render import text
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.format.header import decode_header, encode_header, payload_checksum
from omlx_cache_storage.format.names import PageName, name_of
from omlx_cache_storage.format.packing import unwrapped
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page, WriteResult
from omlx_cache_storage.remote.envelope import WIRE_BYTES, ReceivedPage, RemoteKeys, seal

from . import files
from .mutate import NUMBERS, nested, spoil_bytes, spoil_value
from .run import Target, refused

_NUMBERS = (b"0", b"7777777", b"77777777777", b"-1", b"\x80" + b"\xff" * 10, b"99999999999")
_KINDS = b"01234567gxLKSAV\0\xff"


class Kept:
    """Takes what an archive has, and checks that it is what a reader would serve."""

    def has(self, page: PageAt) -> bool:
        return False

    def write(self, page: Page, time_ns: int, document: Document) -> WriteResult:
        raw = encode_header(page.meta, payload_checksum(page.payload)) + bytes(page.payload)
        assert checked(raw, page.meta.namespace, name_of(page.meta)).meta == page.meta
        assert time_ns >= 0
        return "written"


def one_archive(data: bytes) -> bool:
    done = None
    try:
        archive = Archive(io.BytesIO(data))
        for done in archive.unpack(Kept()):
            assert done.pages.total() <= archive.manifest.pages
    except ArchiveError as error:
        return refused(error)
    return done is not None and not done.pages["damaged"]


def vary_archive(rng: Random, sample: bytes) -> bytes:
    """Return an archive with a spoilt part, most often under right sums."""
    if rng.random() < 0.2:
        return spoil_bytes(rng, sample)
    if rng.random() < 0.1:
        return sample[: rng.randrange(len(sample))]
    members = read(sample)
    at = rng.randrange(len(members))
    info, raw = members[at]
    kind = rng.randrange(6)
    if kind == 0:
        raw = files.vary_page_file(rng, raw) if at else spoil_bytes(rng, raw)
        members[at] = info, raw
    elif kind == 1:
        members.append((info, raw))
    elif kind == 2:
        info.name = rng.choice(("/", "../", "./", "x/", "")) + info.name[rng.choice((0, 1)) :]
    elif kind == 3:
        info.type = bytes([rng.choice(_KINDS)])
    elif kind == 4:
        name = rng.choice(("path", "size", "mtime", "GNU.sparse.map", "x"))
        info.pax_headers = {name: rng.choice(("", "-1", "9" * 30, "../x", "1" * 70_000))}
    else:
        members[at:] = []
    packed = pack(members)
    if rng.random() < 0.3:
        packed = _respelled(rng, packed)
    return packed


def _respelled(rng: Random, packed: bytes) -> bytes:
    """Return an archive with another number in a header, and the sum that goes with it."""
    headers = [m.start() - 257 for m in re.finditer(b"ustar", packed)]
    at = rng.choice([h for h in headers if h >= 0 and h % 512 == 0] or [0])
    header = bytearray(packed[at : at + 512])
    start = rng.choice((124, 136))
    header[start : start + 12] = rng.choice(_NUMBERS).ljust(12, b"\0")[:12]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return packed[:at] + bytes(header) + packed[at + 512 :]


def read(sample: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return the members of a sound archive."""
    with tarfile.open(fileobj=io.BytesIO(sample)) as archive:
        found = []
        for info in archive:
            file = archive.extractfile(info)
            info.pax_headers = {}
            found.append((info, file.read()))
        return found


def pack(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """Return an archive of members, whatever they say of themselves."""
    parts = []
    for info, raw in members:
        info.size = len(raw)
        parts += [info.tobuf(tarfile.PAX_FORMAT, "utf-8", "replace"), raw, bytes(-len(raw) % 512)]
    return b"".join(parts) + bytes(1024)


@cache
def archive_sample() -> bytes:
    found: dict[str, bytes] = {}
    namespaces: dict[str, Document] = {}
    for raw in files.files():
        meta = unwrapped(decode_header(raw).meta)
        namespaces[meta.namespace.hex()] = {}
        # Of one_archive page there are several files: an archive has the last of them.
        found[PageAt(meta.namespace, name_of(meta)).path] = raw
    members = [(tarfile.TarInfo(path), raw) for path, raw in found.items()]
    manifest = Manifest(len(found), 2**20, namespaces, "everything")
    raw = encode_manifest(manifest)
    assert decode_manifest(raw).pages == len(found)
    return pack([(tarfile.TarInfo(MANIFEST_FILE), raw), *members])


ARCHIVE = Target(
    "archive",
    lambda: [archive_sample()],
    vary_archive,
    one_archive,
    constant=8 * MIB,
    factor=8,
    share=0.2,
)


NAME = "1/cpu/namespace/key-group"
OPEN = RemoteKeys()
SIGNED = RemoteKeys(b"what nobody who writes inputs has")
SEALED = RemoteKeys(b"what nobody who writes inputs has", encrypts=True)
_FIELDS = ((16, 8), (24, 8), (32, 8), (40, 8), (8, 2))
"""Where the envelope has numbers, and of how many bytes."""


@cache
def _stored() -> tuple[Page, ...]:
    """Return sound pages as they are stored."""
    headers = [(decode_header(data), data) for data in files.files()]
    return tuple(Page(header.meta, data[header.data_offset :]) for header, data in headers)


@cache
def _known() -> tuple[tuple[BlockKey, PageName], ...]:
    """Return the pages that are asked for."""
    metas = [unwrapped(page.meta) for page in _stored()]
    return tuple(dict.fromkeys((meta.namespace, name_of(meta)) for meta in metas))


def value_samples(keys: RemoteKeys) -> Sequence[bytes]:
    return [b"".join(seal(NAME, page, keys)) for page in _stored()]


def one_value(keys: RemoteKeys, data: bytes) -> bool:
    """Ask for each page that there is: at most one of them comes, and as it was written."""
    accepted = False
    for namespace, name in _known():
        try:
            received = ReceivedPage(NAME, namespace, name.id, [data[:100], data[100:]], keys)
            meta = received.meta
            assert (meta.namespace, name_of(meta)) == (namespace, name)
            assert meta.nbytes <= 2 * len(data), "room for more than a value can hold"
            payload = bytearray(meta.nbytes)
            received.read_into([payload])
        except PageError as error:
            refused(error)
            continue
        assert not accepted, "one value is two pages"
        accepted = True
        if keys.authenticates:
            # Nobody who has no secret can make other pages than those that were made with it.
            assert bytes(payload) in _payloads()
    return accepted


@cache
def _payloads() -> frozenset[bytes]:
    return frozenset(map(_payload, _stored()))


def _payload(page: Page) -> bytes:
    value = b"".join(seal(NAME, page, OPEN))
    meta = unwrapped(page.meta)
    payload = bytearray(meta.nbytes)
    ReceivedPage(NAME, meta.namespace, meta.id, [value], OPEN).read_into([payload])
    return bytes(payload)


def vary_value(keys: RemoteKeys, rng: Random, sample: bytes) -> bytes:
    """Return a value whose envelope or body is spoilt, most often under the tag that anybody can
    compute: that without a secret."""
    head, body = bytearray(sample[:WIRE_BYTES]), sample[WIRE_BYTES:]
    kind = rng.random()
    if kind < 0.4 and not keys.encrypts:
        body = files.vary_page_file(rng, body)
        head[16:24] = len(body).to_bytes(8, "little")
    elif kind < 0.5:
        body = spoil_bytes(rng, body)
    else:
        at, size = rng.choice(_FIELDS)
        number = rng.choice(NUMBERS) % 256**size
        head[at : at + size] = number.to_bytes(size, "little")
    if rng.random() < 0.8:
        head[96:] = hashlib.sha256(bytes(head[:96]) + NAME.encode()).digest()
    return bytes(head) + body


def _target(name: str, keys: RemoteKeys) -> Target:
    samples, vary = partial(value_samples, keys), partial(vary_value, keys)
    return Target(name, samples, vary, partial(one_value, keys), constant=80 * MIB, factor=8)


VALUES = (_target("value", OPEN), _target("signed", SIGNED), _target("sealed", SEALED))


REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ping", {}),
    ("ls", {"namespace": "ab" * 4, "limit": 10}),
    ("events", {"kinds": ["stored", "removed"], "kv": True, "after": 7}),
    ("clear", {"namespace": "ab" * 32, "timeout": 2.5}),
    (
        "prune",
        {
            "keep": [{"format": "1", "mlx": "0", "mlx-lm": "0"}],
            "before_ns": 10**18,
            "to_bytes": 2**30,
            "dry_run": True,
        },
    ),
)
QUERIES = ("ping", "ls?namespace=abababab&limit=10", "events?kinds=stored,removed&kv=1&after=7")
ROW = {"key": "ab" * 32, "group": "paged", "position": 256, "bytes": 2**20, "tiers": ["cold"],
       "age_s": 1.5, "path": "/x"}  # fmt: skip
ANSWERS: tuple[Any, ...] = ({"pid": 1, "version": "0", "hot": {"bytes": 1, "pages": 2}}, [ROW, ROW])
HEAD = b"HTTP/1.1 %d OK\r\nContent-Type: x\r\nContent-Length: %d\r\nDate: x\r\n\r\n"


def _echo(args: Mapping[str, object]) -> object:
    assert all(args), "every parameter has a name"
    return args


_ROUTES = Routes({path.removeprefix(STORE): _echo for path in ROUTES if path.startswith(STORE)})


def one_request(data: bytes) -> bool:
    head, _, body = data.partition(b"\r\n\r\n")
    words = head.split(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3:
        return False
    answer = _ROUTES.answer(words[0], words[1], {}, None, body)
    if answer.status == 200:
        json.loads(answer.body)
        return True
    assert answer.status < 500, answer.body
    return refused(ValueError(answer.body.decode()))


def one_answer(data: bytes) -> bool:
    try:
        result = decode_answer(data, "here")
    except (ControlError, CommandError) as error:
        # Its text is the store's own.
        return refused(error, len(data))
    # What the command line does with any answer.
    assert text(result).isprintable()
    for check in (as_map, as_maps):
        try:
            check(result)
        except CommandError:
            continue
    return True


def vary_message(rng: Random, sample: bytes) -> bytes:
    head, _, body = sample.partition(b"\r\n\r\n")
    kind = rng.random()
    if kind < 0.4 and body:
        value = spoil_value(rng, json.loads(body))
        body = json.dumps(value, default=str).encode(errors="replace")
    elif kind < 0.5:
        body = json.dumps(nested(rng.choice((10, 100)), rng.choice((list, dict)))).encode()
    elif kind < 0.6:
        body = rng.choice((b"[", b'{"a":', b"1e", b'"\\ud800', b"NaN ")) * rng.choice((1, 50_000))
    elif kind < 0.8:
        head = spoil_bytes(rng, head)
    else:
        return spoil_bytes(rng, sample)
    if head.startswith(b"HTTP/") and rng.random() < 0.9:
        return HEAD % (200, len(body)) + body
    return head + b"\r\n\r\n" + body


def requests() -> list[bytes]:
    assert {name for name, _ in REQUESTS} & CHANGES
    asked = [f"GET {STORE}{query} HTTP/1.1\r\n\r\n".encode() for query in QUERIES]
    return asked + [encode_request(name, args) for name, args in REQUESTS]


def answers() -> list[bytes]:
    bodies = [json.dumps(answer).encode() for answer in ANSWERS]
    return [HEAD % (200, len(body)) + body for body in bodies] + [HEAD % (503, 6) + b'"busy"']


REQUEST = Target("request", requests, vary_message, one_request, constant=16 * MIB)
REPLY = Target("reply", answers, vary_message, one_answer, constant=32 * MIB, factor=100)
