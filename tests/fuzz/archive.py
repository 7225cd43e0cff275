"""An archive of another machine: its tar structure, its manifest, the names and bytes of pages."""

import io
import re
import tarfile
from functools import cache
from random import Random

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
from omlx_cache_storage.format.header import decode_header, encode_header, payload_checksum
from omlx_cache_storage.format.names import name_of
from omlx_cache_storage.format.wrapping import unwrapped
from omlx_cache_storage.page import Page, WriteResult

from . import page_file, pages
from .mutate import spoil_bytes
from .target import MIB, Target, refused

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


def one(data: bytes) -> bool:
    done = None
    try:
        archive = Archive(io.BytesIO(data))
        for done in archive.unpack(Kept()):
            assert done.read <= archive.manifest.pages
    except ArchiveError as error:
        return refused(error)
    return done is not None and not done.pages["damaged"]


def vary(rng: Random, sample: bytes) -> bytes:
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
        raw = page_file.vary(rng, raw) if at else spoil_bytes(rng, raw)
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
def _sample() -> bytes:
    files: dict[str, bytes] = {}
    namespaces: dict[str, Document] = {}
    for raw in pages.files():
        meta = unwrapped(decode_header(raw).meta)
        namespaces[meta.namespace.hex()] = {}
        # Of one page there are several files: an archive has the last of them.
        files[PageAt(meta.namespace, name_of(meta)).path] = raw
    members = [(tarfile.TarInfo(path), raw) for path, raw in files.items()]
    manifest = Manifest(len(files), 2**20, namespaces, "everything")
    raw = encode_manifest(manifest)
    assert decode_manifest(raw).pages == len(files)
    return pack([(tarfile.TarInfo(MANIFEST_FILE), raw), *members])


TARGET = Target("archive", lambda: [_sample()], vary, one, constant=8 * MIB, factor=8, share=0.2)
