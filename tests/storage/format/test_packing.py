import contextlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from kit.storage.signed import signed_planes
from kit.work import traced_memory
from omlx_cache_storage.errors import CorruptPage
from omlx_cache_storage.format import packing
from omlx_cache_storage.format.packing import zstd

needs_zstd = pytest.mark.skipif(not packing.available(), reason="the extra zstd is not installed")
pytestmark = needs_zstd


def bf16(elements: int, seed: int = 0) -> bytes:
    drawn = np.random.default_rng(seed).normal(size=elements).astype(np.float32)
    return (drawn.view(np.uint32) >> 16).astype("<u2").tobytes()


def packed(raw: bytes) -> bytes:
    frame = packing.pack(raw)
    assert frame is not None
    return frame


@pytest.mark.parametrize("elements", [2048, 100_001, 1 << 20])
def test_page_comes_back_byte_for_byte(elements: int) -> None:
    raw = bf16(elements)
    assert packing.unpack(packed(raw), len(raw)) == raw


def test_bf16_page_shrinks_by_well_over_a_tenth() -> None:
    raw = bf16(1 << 18)
    assert 0.25 < 1 - len(packed(raw)) / len(raw) < 0.40


@settings(max_examples=examples(80))
@given(st.data())
def test_every_flipped_bit_or_cut_is_refused(data: st.DataObject) -> None:
    raw = bf16(2048)
    frame = bytearray(packed(raw))
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(frame) - 1))
        frame[place] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del frame[data.draw(st.integers(0, len(frame) - 1)) :]
    # A flip in zstd's own optional fields may leave the plane as it was; wrong bytes never pass.
    with contextlib.suppress(CorruptPage):
        assert packing.unpack(bytes(frame), len(raw)) == raw


@pytest.mark.parametrize(
    ("magic", "size", "high"),
    [
        (packing.MAGIC, 1 << 62, 100),
        (packing.MAGIC, 4096, 1 << 62),
        (packing.MAGIC, 4095, 100),
        (packing.MAGIC, 0, 100),
        (b"OMLXPLN2", 4096, 100),
    ],
)
def test_well_sealed_header_with_false_sizes_allocates_nothing(
    magic: bytes, size: int, high: int
) -> None:
    frame = signed_planes(size, high, 0, bytes(3000), magic)
    with traced_memory():
        with pytest.raises(CorruptPage):
            packing.unpack(frame, size)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20


def test_bomb_in_the_high_plane_is_stopped_at_the_planes_size() -> None:
    bomb = zstd().compress(bytes(1 << 26))
    frame = signed_planes(4096, len(bomb), 0, bytes(2048) + bomb)
    with traced_memory():
        with pytest.raises(CorruptPage, match="2048"):
            packing.unpack(frame, 4096)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
