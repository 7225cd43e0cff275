"""Values of a remote store: whoever can write there, and has no secret, gets not one byte in."""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from random import Random

from omlx_cache_storage.errors import PageError
from omlx_cache_storage.format.header import decode_header
from omlx_cache_storage.format.names import PageName, name_of
from omlx_cache_storage.format.wrapping import unwrapped
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import Page
from omlx_cache_storage.remote.envelope import WIRE_BYTES, RemoteKeys, seal
from omlx_cache_storage.remote.received import ReceivedPage

from . import page_file, pages
from .mutate import NUMBERS, spoil_bytes
from .target import MIB, Target, refused

NAME = "1/cpu/namespace/key-group"
OPEN = RemoteKeys()
SIGNED = RemoteKeys(b"what nobody who writes inputs has")
SEALED = RemoteKeys(b"what nobody who writes inputs has", encrypts=True)
_FIELDS = ((16, 8), (24, 8), (32, 8), (40, 8), (8, 2))
"""Where the envelope has numbers, and of how many bytes."""


@cache
def _stored() -> tuple[Page, ...]:
    """Return sound pages as they are stored."""
    headers = [(decode_header(data), data) for data in pages.files()]
    return tuple(Page(header.meta, data[header.data_offset :]) for header, data in headers)


@cache
def _known() -> tuple[tuple[BlockKey, PageName], ...]:
    """Return the pages that are asked for."""
    metas = [unwrapped(page.meta) for page in _stored()]
    return tuple(dict.fromkeys((meta.namespace, name_of(meta)) for meta in metas))


def _samples(keys: RemoteKeys) -> Sequence[bytes]:
    return [b"".join(seal(NAME, page, keys)) for page in _stored()]


def _one(keys: RemoteKeys, data: bytes) -> bool:
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


def _vary(keys: RemoteKeys, rng: Random, sample: bytes) -> bytes:
    """Return a value whose envelope or body is spoilt, most often under the tag that anybody can
    compute: that without a secret."""
    head, body = bytearray(sample[:WIRE_BYTES]), sample[WIRE_BYTES:]
    kind = rng.random()
    if kind < 0.4 and not keys.encrypts:
        body = page_file.vary(rng, body)
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
    one: Callable[[bytes], bool] = partial(_one, keys)
    return Target(
        name, partial(_samples, keys), partial(_vary, keys), one, constant=80 * MIB, factor=8
    )


TARGETS = (_target("value", OPEN), _target("signed", SIGNED), _target("sealed", SEALED))
