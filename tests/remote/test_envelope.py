"""A value is the page that was written under its name by who has the secret, or it is refused."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.storage import Story
from omlx_cache_storage.errors import CorruptPage, ForeignPage, PageError
from omlx_cache_storage.page import Page, TensorSpec
from omlx_cache_storage.remote.envelope import (
    WIRE_BYTES,
    ReceivedPage,
    RemoteKeys,
    read_envelope,
    seal,
)

OPEN = RemoteKeys()
SIGNED = RemoteKeys(b"a secret of 16 bytes or more")
OTHER = RemoteKeys(b"another secret of as many bytes")
SEALED = RemoteKeys(b"a secret of 16 bytes or more", encrypts=True)
NAME = "1/cpu/ns/key-paged"
EVERY = {"open": OPEN, "signed": SIGNED, "sealed": SEALED}


def _value(page: Page, keys: RemoteKeys, name: str = NAME, *, packs: bool = False) -> bytes:
    return b"".join(seal(name, page, keys, packs=packs))


def _receive(
    page: Page, parts: Sequence[bytes], keys: RemoteKeys, name: str = NAME
) -> tuple[ReceivedPage, bytes]:
    received = ReceivedPage(name, page.meta.namespace, page.meta.id, parts, keys)
    target = bytearray(page.meta.nbytes)
    middle = len(target) // 3
    received.read_into([memoryview(target)[:middle], memoryview(target)[middle:]])
    return received, bytes(target)


def _floats(story: Story) -> Page:
    """A page of 2-byte floats whose high bytes repeat, as those of keys and values do."""
    meta = replace(story.meta(2, nbytes=0), tensors=(TensorSpec("0.keys", "BF16", (64, 1024)),))
    noise = story.page(1, nbytes=64 * 1024).payload
    payload = bytearray(2 * 64 * 1024)
    payload[0::2], payload[1::2] = noise, b"\x3f" * (64 * 1024)
    return Page(meta, bytes(payload))


@pytest.mark.parametrize("keys", EVERY.values(), ids=EVERY)
@given(
    nbytes=st.sampled_from([1, 7, 4096, 600_000]),
    cuts=st.lists(st.integers(0, 700_000), max_size=5),
)
def test_what_was_sealed_is_received_wherever_it_was_cut(
    keys: RemoteKeys, nbytes: int, cuts: list[int]
) -> None:
    page = Story().page(3, nbytes=nbytes)
    value = _value(page, keys)
    ends = sorted({0, len(value), *(min(cut, len(value)) for cut in cuts)})
    parts = [value[start:stop] for start, stop in itertools.pairwise(ends)]
    received, payload = _receive(page, parts, keys)
    assert received.meta == page.meta
    assert payload == page.payload
    described = read_envelope(NAME, value[:WIRE_BYTES], keys)
    assert described.wire_bytes == len(value)
    assert described.info[:3] == (page.meta.position, page.meta.held, page.meta.nbytes)


@pytest.mark.parametrize("keys", EVERY.values(), ids=EVERY)
def test_a_page_is_packed_for_the_way_once(keys: RemoteKeys) -> None:
    page = _floats(Story())
    plain, packed = _value(page, keys), _value(page, keys, packs=True)
    assert len(packed) < 0.7 * len(plain)
    received, payload = _receive(page, [packed], keys)
    assert (received.meta, payload) == (page.meta, page.payload)


@pytest.mark.parametrize("keys", EVERY.values(), ids=EVERY)
def test_no_flipped_bit_gets_in(keys: RemoteKeys) -> None:
    page = Story().page(1, nbytes=64)
    value = _value(page, keys)
    places = [
        *range(WIRE_BYTES),
        *range(WIRE_BYTES, len(value), 61),
        *range(len(value) - 80, len(value)),
    ]
    for place, bit in itertools.product(places, (0x01, 0x80)):
        bad = bytearray(value)
        bad[place] ^= bit
        with pytest.raises(PageError):
            _receive(page, [bytes(bad)], keys)


@pytest.mark.parametrize("keys", EVERY.values(), ids=EVERY)
def test_a_value_that_is_cut_or_longer_is_refused(keys: RemoteKeys) -> None:
    page = Story().page(1)
    value = _value(page, keys)
    for length in (0, 1, 7, WIRE_BYTES - 1, WIRE_BYTES, WIRE_BYTES + 9, len(value) - 1):
        with pytest.raises(PageError):
            _receive(page, [value[:length]], keys)
    with pytest.raises(CorruptPage):
        _receive(page, [value, b"x"], keys)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (OPEN, SIGNED),
        (SIGNED, OPEN),
        (SIGNED, OTHER),
        (SEALED, SIGNED),
        (SIGNED, SEALED),
        (SEALED, OPEN),
        (OPEN, SEALED),
    ],
)
def test_who_has_not_the_same_secret_is_a_stranger(writer: RemoteKeys, reader: RemoteKeys) -> None:
    page = Story().page(1)
    with pytest.raises(ForeignPage):
        _receive(page, [_value(page, writer)], reader)


@pytest.mark.parametrize("keys", EVERY.values(), ids=EVERY)
def test_another_page_under_the_name_is_refused(keys: RemoteKeys) -> None:
    story = Story()
    asked, planted = story.page(2), story.page(3)
    with pytest.raises(ForeignPage):
        _receive(asked, [_value(planted, keys)], keys)


def test_a_body_from_elsewhere_under_a_right_envelope_is_refused() -> None:
    page, nbytes = Story().page(1), 4096
    value = _value(page, SIGNED)
    planted = _value(page._replace(payload=bytes(nbytes)), OPEN)
    with pytest.raises(CorruptPage):
        _receive(page, [value[:WIRE_BYTES], planted[WIRE_BYTES:]], SIGNED)


def test_the_store_sees_no_plaintext_of_an_encrypted_page_and_no_two_alike() -> None:
    page = Story().page(1)
    one, two = (_value(page, SEALED) for _ in range(2))
    assert one[WIRE_BYTES:] != two[WIRE_BYTES:]
    assert bytes(page.payload)[:64] not in one
    assert page.meta.namespace.hex().encode() not in one
