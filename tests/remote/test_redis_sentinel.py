"""The Redis engine behind a Sentinel: the master is found, and the next one after it."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from kit.remote.engines import engine_at, reason_of, whole, write
from kit.remote.processes import free_port
from kit.remote.redis_groups import Sentinels, redis_sentinels, replicas_have_all
from omlx_cache_storage.remote.engine import RemoteEngine, RemoteError


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with redis_sentinels() as running:
        yield running


@pytest.fixture
def watched() -> Iterator[Sentinels]:
    """Those of which a master that is gone is replaced within seconds."""
    with redis_sentinels(down_after_seconds=1) as running:
        yield running


def works(engine: RemoteEngine, name: str) -> None:
    assert write(engine, name, b"head", b"part")
    assert whole(engine, name, [4, 4]) == [b"head", b"part"]


def test_values_go_to_the_master(sentinels: Sentinels) -> None:
    with engine_at(sentinels.url) as engine:
        works(engine, "v")
        assert sentinels.master().calls("set") > 0
        assert engine.look(["v"], 4) == ([b"head"], [])


def test_a_failover_in_the_middle_is_a_fault_and_then_over(watched: Sentinels) -> None:
    with engine_at(watched.url) as engine:
        works(engine, "v")
        replicas_have_all(watched.master())
        before = watched.master()
        before.process.kill()
        assert reason_of(engine.look, ["v"], 4).reason in ("refused", "lost")
        watched.failed_over(before)
        assert engine.look(["v"], 4) == ([b"head"], [])
        works(engine, "w")


@pytest.mark.nightly
def test_a_master_that_was_made_a_replica_costs_a_fault_at_most(sentinels: Sentinels) -> None:
    with engine_at(sentinels.url) as engine:
        works(engine, "before")
        replicas_have_all(sentinels.master())
        before = sentinels.master()
        sentinels.change_master()
        with suppress(RemoteError):
            write(engine, "meanwhile", b"value")
        works(engine, "after")
        assert sentinels.failed_over(before).calls("set") > 0


@pytest.mark.nightly
def test_a_master_that_stands_still_costs_a_time_out_and_is_replaced(watched: Sentinels) -> None:
    with engine_at(watched.url, lookup_seconds=1, read_seconds=1) as engine:
        works(engine, "v")
        replicas_have_all(watched.master())
        before = watched.master()
        before.process.suspend()
        assert reason_of(engine.look, ["v"], 4).reason == "timeout"
        watched.failed_over(before)
        assert engine.look(["v"], 4) == ([b"head"], [])
        before.process.resume()


def test_a_sentinel_that_is_gone_is_passed_over(sentinels: Sentinels) -> None:
    dead = f"127.0.0.1:{free_port()}"
    with engine_at(sentinels.url.replace("://", f"://{dead},")) as engine:
        works(engine, "passed over")


def test_no_sentinel_and_no_such_service(sentinels: Sentinels) -> None:
    with engine_at(f"redis+sentinel://127.0.0.1:{free_port()}/pages") as engine:
        assert reason_of(engine.ping).reason == "refused"
    with engine_at(f"{sentinels.url}-of-others") as engine:
        error = reason_of(engine.ping)
        assert (error.reason, "pages-of-others" in str(error)) == ("error", True)


@pytest.mark.parametrize("own", [None, "of-all"])
def test_servers_have_a_password_and_sentinels_may_have_the_same(own: str | None) -> None:
    with redis_sentinels(password="of-all", sentinel_password=own) as sentinels:
        with engine_at(sentinels.url, password="of-all") as engine:
            works(engine, "v")
        with engine_at(sentinels.url, password="wrong") as engine:
            assert reason_of(engine.ping).reason == "auth"


def test_a_sentinel_with_another_password_is_told() -> None:
    with (
        redis_sentinels(password="of-all", sentinel_password="of-sentinels") as guarded,
        engine_at(guarded.url, password="of-all") as engine,
        pytest.raises(RemoteError) as raised,
    ):
        engine.ping()
    assert raised.value.reason == "auth"
    assert "of-all" not in str(raised.value)
