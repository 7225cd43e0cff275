"""Memory that values are received into is lent to one at a time, and not kept without bounds."""

import gc
import threading
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_cache_storage.remote.slabs import KEPT, SMALL_BYTES, Slabs

MIB = 1 << 20


@pytest.mark.parametrize("nbytes", [0, 1, SMALL_BYTES - 1, SMALL_BYTES, MIB + 1, 4 * MIB])
def test_as_much_as_is_asked_for_is_lent_and_can_be_written(nbytes: int) -> None:
    room = Slabs().memory(nbytes)
    assert (room.nbytes, room.readonly, room.format) == (nbytes, False, "B")
    room[:] = b"x" * nbytes
    assert bytes(room) == b"x" * nbytes


def test_what_nobody_refers_to_is_lent_again() -> None:
    slabs = Slabs()
    room = slabs.memory(MIB)
    room[:4] = b"last"
    del room
    assert slabs.free_bytes == MIB
    again = slabs.memory(MIB)
    assert slabs.free_bytes == 0
    assert bytes(again[:4]) == b"last"


def test_a_slice_of_a_slice_keeps_memory_lent() -> None:
    slabs = Slabs()
    room = slabs.memory(MIB)
    room[:] = b"a" * MIB
    kept = room[100:][100:200]
    del room
    gc.collect()
    assert slabs.free_bytes == 0
    slabs.memory(MIB)[:] = b"b" * MIB
    assert bytes(kept) == b"a" * 100
    del kept
    assert slabs.free_bytes == 2 * MIB


def test_no_more_than_is_allowed_lies_unused_and_nothing_after_a_clear() -> None:
    slabs = Slabs()
    rooms = [slabs.memory(4 * MIB) for _ in range(10)]
    assert slabs.free_bytes == 0
    del rooms
    assert slabs.free_bytes == KEPT * 4 * MIB
    slabs.clear()
    assert slabs.free_bytes == 0


def test_what_is_lent_when_it_is_cleared_is_not_kept_when_it_comes_back() -> None:
    slabs = Slabs()
    room = slabs.memory(MIB)
    room[:] = b"a" * MIB
    slabs.clear()
    assert bytes(room) == b"a" * MIB
    del room
    assert slabs.free_bytes == 0
    slabs.keep()
    slabs.memory(MIB)
    assert slabs.free_bytes == MIB


def test_one_of_another_size_is_not_lent_and_not_lost() -> None:
    slabs = Slabs()
    rooms = [slabs.memory(MIB), slabs.memory(2 * MIB)]
    del rooms
    assert slabs.memory(2 * MIB).nbytes == 2 * MIB
    room = slabs.memory(MIB)
    assert slabs.free_bytes == 2 * MIB
    assert room.nbytes == MIB


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * MIB)), max_size=30), st.integers(0, 99))
def test_two_that_are_lent_never_overlap(steps: list[tuple[bool, int]], seed: int) -> None:
    slabs, random = Slabs(), Random(seed)
    lent: list[tuple[memoryview, bytes]] = []
    for number, (lends, nbytes) in enumerate(steps):
        if lends or not lent:
            room, mark = slabs.memory(nbytes), bytes([number % 256])
            room[:] = mark * nbytes
            lent.append((room, mark))
        else:
            del lent[random.randrange(len(lent))]
        for room, mark in lent:
            assert bytes(room[:9]) + bytes(room[-9:]) == mark * len(bytes(room[:9]) * 2)
        assert slabs.free_bytes <= KEPT * 4 * MIB


def test_threads_share_slabs_and_nobody_sees_anothers_bytes() -> None:
    slabs, wrong = Slabs(), []

    def borrow(number: int) -> None:
        random = Random(number)
        for _ in range(300):
            room = slabs.memory(SMALL_BYTES * random.randint(1, 4))
            room[:] = bytes([number]) * room.nbytes
            kept = room[random.randrange(room.nbytes) :]
            del room
            if bytes(kept) != bytes([number]) * kept.nbytes:
                wrong.append(number)

    threads = [threading.Thread(target=borrow, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert slabs.free_bytes <= KEPT * 4 * SMALL_BYTES
