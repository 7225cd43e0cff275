"""What the remote tier promises, over every engine: what one machine writes another one reads."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.remote import MemoryEngine, MemoryStore
from kit.remote.engines import PATIENT_SECONDS
from kit.remote.redis_servers import redis_server
from kit.storage import Story, expected_payload
from omlx_cache_storage.page import Page, PageId, Placed, Tail
from omlx_cache_storage.remote.address import parse_address
from omlx_cache_storage.remote.engine import RemoteEngine, RemoteOptions
from omlx_cache_storage.remote.tier import RemoteTier, open_engine

PAGE = 128 * 1024
STORY = Story(nbytes=PAGE)
PATIENT = {"lookup_seconds": PATIENT_SECONDS, "read_seconds": PATIENT_SECONDS}
PARTS = {"in one part": 8 << 20, "in parts": 10_000, "in stretches": None}


class _Pair:
    """Two machines: what the one puts the other one is told of, as it would be by a look-up."""

    def __init__(self, *engines: RemoteEngine) -> None:
        options = RemoteOptions("", "cpu", secret=b"a secret of these tests", **PATIENT)
        self.writer, self.tier = (
            RemoteTier(engine, options, engine_name="", where="") for engine in engines
        )

    def put(self, page: Page) -> str:
        result = self.writer.write(page)
        self.tier.present([Placed(page.meta.namespace, page.meta.id)])
        return result

    def get(self, page: PageId) -> bytes:
        with self.tier.reading(page) as reader:
            payload = bytearray(reader.meta.nbytes)
            reader.read_into([payload])
        return bytes(payload)


@pytest.fixture(params=[*PARTS, "Redis", "directory"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Pair]:
    with ExitStack() as ends:
        if request.param in PARTS:
            store = MemoryStore()
            part_bytes = PARTS[request.param]
            made = _Pair(*(MemoryEngine(store, part_bytes=part_bytes) for _ in range(2)))
        else:
            url = f"file://{tmp_path / 'share'}"
            if request.param == "Redis":
                url = ends.enter_context(redis_server()).url
            options = RemoteOptions(url, "cpu", **PATIENT)
            made = _Pair(*(open_engine(parse_address(url), options) for _ in range(2)))
        yield made
        for tier in (made.writer, made.tier):
            assert tier.close(30)
            tier.check_integrity()


def test_what_is_put_is_got(pair: _Pair) -> None:
    for number in (1, 2, 3):
        page = STORY.page(number)
        assert pair.put(page) == "written"
        assert pair.get(page.meta.id) == page.payload == expected_payload(page.meta.id, PAGE)
        assert pair.tier.meta(page.meta.id) == page.meta
        info = pair.tier.info(page.meta.id)
        assert info is not None
        assert (info.position, info.held, info.nbytes) == (number * 16, 16, PAGE)


def test_pages_of_groups_under_one_key_are_apart(pair: _Pair) -> None:
    pages = [STORY.page(1, group=group) for group in ("paged", "window64keep0", "state")]
    assert [pair.put(page) for page in pages] == ["written"] * 3
    assert [pair.get(page.meta.id) for page in pages] == [page.payload for page in pages]


def test_a_page_that_holds_more_replaces_one_that_holds_less(pair: _Pair) -> None:
    for held, result, expected in ((8, "written", 8), (16, "written", 16), (8, "present", 16)):
        assert pair.put(STORY.page(1, held=held)) == result
        info = pair.tier.info(STORY.id(1))
        assert info is not None
        assert info.held == expected
        assert pair.get(STORY.id(1)) == expected_payload(STORY.id(1), PAGE)


def test_a_page_that_ends_inside_a_block_is_found_by_its_parent(pair: _Pair) -> None:
    tail = STORY.page(2, tail=5)
    assert pair.put(tail) == "written"
    parents = [tail.meta.parent, STORY.id(7).key]
    assert pair.writer.tails_of(parents) == {Tail(tail.meta.position, "paged")}
    assert pair.tier.tails_of(parents) == set()
    assert pair.tier.write(tail) == "present"
    assert pair.tier.tails_of(parents) == {Tail(tail.meta.position, "paged")}


def test_a_page_of_no_bytes_is_a_page(pair: _Pair) -> None:
    meta = STORY.meta(1)
    empty = Page(
        type(meta)(
            meta.namespace, meta.key, meta.parent, meta.group, 16, 16, False, "dense", tensors=()
        ),
        b"",
    )
    assert pair.put(empty) == "written"
    assert pair.get(meta.id) == b""
