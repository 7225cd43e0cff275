"""The Redis engine against a real server: values, sets, users, and a server that fails."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.remote.engines import engine_at, reason_of, whole, write
from kit.remote.redis_servers import RedisServer, redis_server
from omlx_cache_storage.remote.redis_engine import PART_BYTES, part_name

IMPATIENT = {"lookup_seconds": 0.2, "read_seconds": 0.3}
FULL = PART_BYTES


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server(shared: RedisServer) -> RedisServer:
    shared.ask("FLUSHALL")
    return shared


def test_a_value_in_parts_comes_back_and_goes_whole(server: RedisServer) -> None:
    parts = [bytes([n]) * FULL for n in range(3)] + [b"the rest"]
    lengths = [len(part) for part in parts]
    with engine_at(server.url) as engine:
        assert write(engine, "large", *parts)
        assert whole(engine, "large", lengths) == parts
        assert engine.delete(["large", "absent"]) == 1
        assert whole(engine, "large", lengths) == [None] * 4
        assert server.ask("DBSIZE") == 0


def test_parts_of_two_writers_are_never_mixed(server: RedisServer) -> None:
    """The bytes of one page differ between machines that encrypt it."""

    def written(writer: int) -> None:
        with engine_at(server.url) as engine:
            for value in range(20):
                write(engine, f"v{value}", *[bytes([writer]) * 70_000] * 4)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(written, range(4)))
    with engine_at(server.url) as engine:
        for value in range(20):
            assert len(set(whole(engine, f"v{value}", [70_000] * 4))) == 1


@pytest.mark.parametrize(("ttl", "expires"), [(3600, True), (0, False)])
def test_values_parts_and_sets_live_as_long_as_is_wanted(
    server: RedisServer, ttl: int, expires: bool
) -> None:
    with engine_at(server.url, ttl_seconds=ttl) as engine:
        write(engine, "v", b"head", b"part")
        engine.add("set", "member")
        for key in ("v", part_name("v", 1), "set"):
            left = server.ask("PTTL", key)
            assert 3_500_000 < left <= 3_600_000 if expires else left == -1


def test_a_stopped_server_costs_one_time_out_however_much_is_asked() -> None:
    with redis_server() as server, engine_at(server.url, **IMPATIENT) as engine:
        engine.ping()
        server.process.suspend()
        began = time.monotonic()
        assert reason_of(engine.look, [f"v{n}" for n in range(5000)], 128).reason == "timeout"
        # A new connection is taken by the system, and hears nothing either.
        assert reason_of(engine.ping).reason == "timeout"
        assert time.monotonic() - began < 10
        server.process.resume()
        engine.ping()


def test_a_server_that_is_killed_and_comes_back_is_used_again() -> None:
    with redis_server() as server, engine_at(server.url) as engine:
        write(engine, "v", b"value")
        server.process.kill()
        assert reason_of(engine.look, ["v"], 4).reason in ("refused", "lost")
        assert reason_of(engine.look, ["v"], 4).reason == "refused"
        server.start()
        assert engine.look(["v"], 4) == ([None], [])


def test_a_server_with_no_memory_left_is_full() -> None:
    with (
        redis_server("maxmemory 3mb", "maxmemory-policy noeviction") as server,
        engine_at(server.url) as engine,
    ):
        error = reason_of(write, engine, "v", bytes(4 << 20), b"part")
        assert error.reason == "full"
        assert engine.look(["v"], 4) == ([None], [])
