"""What every engine does alike: over one Redis server, a cluster, an S3 server and a directory."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.remote.engines import engine_at
from kit.remote.places import STORES
from kit.units import MIB
from omlx_cache_storage.remote.engine import Part, RemoteEngine, cut

SIZES = (1, 127, 128, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 20 * MIB)


@pytest.fixture(scope="module", params=["redis", "cluster", "bucket", "directory"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a store."""
    with STORES[request.param](tmp_path_factory.mktemp("store")) as url:
        yield url


@pytest.fixture
def engine(store: str) -> Iterator[RemoteEngine]:
    with engine_at(store) as engine:
        yield engine


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of this test's own, such as names of pages are."""
    return f"omlx-cache/1/arm64/{abs(hash(request.node.name)):032x}/{'ab' * 16}-kv"


def made(nbytes: int, seed: int = 1) -> bytes:
    return (bytes((seed * 7 + n) % 251 for n in range(1009)) * (nbytes // 1009 + 1))[:nbytes]


def put(engine: RemoteEngine, name: str, value: bytes, *, replace: bool = False) -> bool:
    return engine.write(name, cut([value], engine.part_bytes), replace=replace)


def got(engine: RemoteEngine, name: str, nbytes: int, part: int = 4 * MIB) -> bytes | None:
    """Return a value as the tier reads it: in parts, all asked for at once."""
    parts = [
        Part(name, number, start, min(part, nbytes - start))
        for number, start in enumerate(range(0, nbytes, part))
    ]
    found = engine.read(parts)
    if any(one is None for one in found):
        return None
    return b"".join(one for one in found if one is not None)


@pytest.mark.parametrize("nbytes", SIZES)
def test_what_is_written_is_read(engine: RemoteEngine, name: str, nbytes: int) -> None:
    value = made(nbytes)
    assert put(engine, name, value)
    assert got(engine, name, nbytes) == value
    heads, sets = engine.look([name], 128)
    assert heads == [value[:128]]
    assert sets == []


def test_what_is_not_there_is_none_in_its_place(engine: RemoteEngine, name: str) -> None:
    put(engine, f"{name}1", b"first")
    put(engine, f"{name}2", b"2")
    names = [f"{name}{n}" for n in range(60)]
    heads, sets = engine.look(names, 4, [f"{name}-tails"])
    assert heads == [None, b"firs", b"2", *[None] * 57]
    assert sets == [[]]
    assert engine.read([Part(names[0], 0, 0, 9), Part(names[1], 0, 0, 5)]) == [None, b"first"]


def test_a_value_is_written_once_unless_it_is_to_be_replaced(
    engine: RemoteEngine, name: str
) -> None:
    assert put(engine, name, b"first")
    assert not put(engine, name, b"other")
    assert got(engine, name, 5) == b"first"
    assert put(engine, name, b"third", replace=True)
    assert got(engine, name, 5) == b"third"


def test_values_are_deleted_whole_and_counted(engine: RemoteEngine, name: str) -> None:
    put(engine, f"{name}1", made(9 * MIB))
    put(engine, f"{name}2", b"small")
    assert engine.delete([f"{name}1", f"{name}2", f"{name}3"]) == 2
    assert got(engine, f"{name}1", 9 * MIB) is None
    assert engine.look([f"{name}1", f"{name}2"], 1) == ([None, None], [])
    assert engine.delete([f"{name}1"]) == 0
    assert put(engine, f"{name}2", b"again")


def test_sets_have_their_own_members_each_once(engine: RemoteEngine, name: str) -> None:
    for set_name, member in ((f"{name}-tails", "b-1"), (f"{name}-tails2", "other")):
        engine.add(set_name, member)
    engine.add(f"{name}-tails", "a-2")
    engine.add(f"{name}-tails", "b-1")
    heads, (one, other, none) = engine.look(
        [name], 1, [f"{name}-tails", f"{name}-tails2", f"{name}-tail"]
    )
    assert heads == [None]
    assert sorted(one) == ["a-2", "b-1"]
    assert other == ["other"]
    assert none == []


@pytest.mark.parametrize("nbytes", [1000, 9 * MIB])
def test_writers_at_once_publish_one_whole_value(store: str, name: str, nbytes: int) -> None:
    values = [made(nbytes, seed) for seed in range(4)]
    ready = threading.Barrier(4)

    def written(value: bytes) -> bool:
        with engine_at(store) as engine:
            ready.wait(60)
            return put(engine, name, value)

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(written, values))
    with engine_at(store) as engine:
        found = got(engine, name, nbytes)
    assert found in [value for value, won in zip(values, done, strict=True) if won]
    assert done.count(True) == 1


def test_a_value_that_is_replaced_is_never_seen_half(store: str, name: str) -> None:
    values = [bytes([n]) * 100_000 for n in range(2)]
    stop = threading.Event()

    def replacing() -> int:
        rounds = 0
        with engine_at(store) as engine:
            while not stop.is_set():
                put(engine, name, values[rounds % 2], replace=True)
                rounds += 1
        return rounds

    with engine_at(store) as engine, ThreadPoolExecutor(1) as pool:
        put(engine, name, values[0])
        writer = pool.submit(replacing)
        try:
            assert all(got(engine, name, 100_000) in values for _ in range(50))
        finally:
            stop.set()
        assert writer.result(60)
