"""The Redis engine against a real server: values, sets, users, and a server that fails."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kit.remote.engines import engine_at, reason_of, whole, write
from kit.remote.processes import NotYet, eventually, free_port
from kit.remote.redis_servers import RedisServer, redis_server
from omlx_cache_storage.remote.engine import MEMBERS, RemoteEngine, RemoteError
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


def test_a_writer_that_died_keeps_nobody_from_writing_for_long(server: RedisServer) -> None:
    with engine_at(server.url) as engine:
        server.ask("SET", "v#writing", "", "PX", 60_000)
        assert not write(engine, "v", b"head", b"part")
        assert 0 < server.ask("PTTL", "v#writing") <= 60_000
        server.ask("DEL", "v#writing")
        assert write(engine, "v", b"head", b"part")
        assert server.ask("EXISTS", "v#writing") == 0


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


def test_a_set_has_what_was_added_last_and_stays_small(server: RedisServer) -> None:
    with engine_at(server.url) as engine:
        for n in range(MEMBERS + 40):
            engine.add("set", f"member-{n}")
        engine.add("set", f"member-{MEMBERS}")
        _, (members,) = engine.look([], 4, ["set"])
        assert len(members) == MEMBERS
        assert {f"member-{n}" for n in range(60, MEMBERS + 40)} < set(members)


def test_one_server_keeps_databases_apart(server: RedisServer) -> None:
    with engine_at(f"{server.url}/1") as one, engine_at(f"{server.url}/2") as two:
        write(one, "v", b"value")
        assert two.look(["v"], 5) == ([None], [])


def test_nobody_listens() -> None:
    with engine_at(f"redis://127.0.0.1:{free_port()}") as engine:
        assert reason_of(engine.ping).reason == "refused"
        assert reason_of(engine.look, ["a"], 4).reason == "refused"
        assert reason_of(write, engine, "a", b"value").reason == "refused"


def test_a_host_that_nobody_knows() -> None:
    with engine_at("redis://no-such-host.invalid") as engine:
        assert reason_of(engine.ping).reason == "refused"


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


def test_a_server_that_is_killed_in_the_middle_of_a_read_is_lost() -> None:
    with redis_server() as server, engine_at(server.url) as engine:
        write(engine, "v", *[bytes(FULL)] * 4)
        lengths = [FULL] * 4
        ending = threading.Event()

        def reading() -> str:
            try:
                while not ending.is_set():
                    whole(engine, "v", lengths)
                    begun.set()
            except RemoteError as error:
                return error.reason
            return ""

        begun = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(reading)
            assert begun.wait(60)
            server.process.kill()
            assert future.result(60) in ("lost", "refused")


def test_closing_ends_what_other_threads_wait_for() -> None:
    with redis_server() as server, engine_at(server.url) as engine:
        engine.ping()
        server.process.suspend()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(reason_of, engine.ping)
            while not server_has_unread(engine):
                assert not future.done()
            engine.close()
            assert future.result(20).reason in ("lost", "timeout")
        assert reason_of(engine.ping).reason == "lost"


def server_has_unread(engine: object) -> bool:
    """Whether a thread has taken the engine's one connection."""
    (pool,) = engine._pools  # type: ignore[attr-defined]
    return not pool._available_connections


def test_a_server_with_no_memory_left_is_full() -> None:
    with (
        redis_server("maxmemory 3mb", "maxmemory-policy noeviction") as server,
        engine_at(server.url) as engine,
    ):
        error = reason_of(write, engine, "v", bytes(4 << 20), b"part")
        assert error.reason == "full"
        assert engine.look(["v"], 4) == ([None], [])


def test_a_server_with_too_many_clients_is_busy() -> None:
    with (
        redis_server("maxclients 1") as server,
        engine_at(server.url) as first,
        engine_at(server.url) as second,
    ):
        first.ping()
        assert reason_of(second.ping).reason == "throttled"


def test_a_script_that_runs_for_long_is_a_busy_server() -> None:
    with redis_server("busy-reply-threshold 1") as server, engine_at(server.url) as engine:
        with ThreadPoolExecutor(1) as pool:
            forever = pool.submit(server.ask, "EVAL", "while true do end", 0)
            assert eventually(lambda: trouble_of(engine), "being busy") == "throttled"
            server.ask("SCRIPT", "KILL")
            assert isinstance(forever.exception(20), Exception)
        engine.ping()


def trouble_of(engine: RemoteEngine) -> str:
    try:
        engine.ping()
    except RemoteError as error:
        return error.reason
    raise NotYet("it answers")
