"""The Redis engine behind a Sentinel: the master is found, and the next one after it."""

from collections.abc import Iterator

import pytest

from kit.remote.engines import engine_at, reason_of, whole, write
from kit.remote.processes import free_port
from kit.remote.redis_groups import Sentinels, redis_sentinels, replicas_have_all
from omlx_cache_storage.remote.engine import RemoteEngine


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
