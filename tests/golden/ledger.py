"""The ledger as `docs/format.md` describes it, read and written by that page alone."""

import fcntl
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import xxhash

MAGIC, RING = b"omlxldg1", 64


class Ledger(NamedTuple):
    """What a ledger holds; `records` are raw, and `documents` what they say."""

    epoch: int
    ring: int
    head: int
    records: list[bytes]

    @property
    def documents(self) -> list[Any]:
        return [msgpack.unpackb(record) for record in self.records]


def parse(data: bytes, start: int = 0) -> Ledger:
    """Return a ledger's records from a position of its head on; raises ValueError for damage."""
    magic, epoch, ring, head, checksum = struct.unpack_from("<8sQQQQ", data)
    if magic != MAGIC or xxhash.xxh64_intdigest(data[:32]) != checksum:
        raise ValueError("no ledger's header")
    if len(data) != RING + ring or head - start > ring:
        raise ValueError("no ledger's ring")
    records, at = [], start
    while at < head:
        length, right = struct.unpack("<II", _ring(data, ring, at, 8))
        record = _ring(data, ring, at + 8, length)
        if xxhash.xxh32_intdigest(record) != right:
            raise ValueError(f"no record at {at}")
        records.append(record)
        at += 8 + length
    if at != head:
        raise ValueError("the last record is longer than the ledger")
    return Ledger(epoch, ring, head, records)


def _ring(data: bytes, ring: int, at: int, length: int) -> bytes:
    return bytes(data[RING + (at + place) % ring] for place in range(length))


def append(path: Path, records: Sequence[bytes]) -> None:
    """Append records as a process of another version would, under the lock."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        data = bytearray(file.read())
        _, epoch, ring, head, _ = struct.unpack_from("<8sQQQQ", data)
        for record in records:
            whole = struct.pack("<II", len(record), xxhash.xxh32_intdigest(record)) + record
            for byte in whole:
                data[RING + head % ring] = byte
                head += 1
        data[:32] = struct.pack("<8sQQQ", MAGIC, epoch, ring, head)
        data[32:40] = xxhash.xxh64_intdigest(bytes(data[:32])).to_bytes(8, "little")
        file.seek(0)
        file.write(data)
