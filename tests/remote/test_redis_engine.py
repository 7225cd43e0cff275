"""The Redis engine against a real server: values, sets, users, and a server that fails."""

import time
from collections.abc import Iterator

import pytest

from kit.remote.engines import engine_at, reason_of, write
from kit.remote.redis_servers import RedisServer, redis_server
from omlx_cache_storage.remote.redis_engine import part_name

IMPATIENT = {"lookup_seconds": 2.0, "read_seconds": 2.0}


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server(shared: RedisServer) -> RedisServer:
    shared.ask("FLUSHALL")
    return shared


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
        assert time.monotonic() - began < 60
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
