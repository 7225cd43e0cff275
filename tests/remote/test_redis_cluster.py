"""The Redis engine on a cluster: values on all nodes, slots that move, nodes that fail."""

from collections.abc import Iterator

import pytest

from kit.remote.engines import engine_at, reason_of, write
from kit.remote.redis_groups import RedisCluster, redis_cluster
from omlx_cache_storage import breaker
from omlx_cache_storage.remote.engine import Part, RemoteEngine, RemoteError

NAMES = [f"value-{n}" for n in range(300)]


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisCluster]:
    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: RedisCluster) -> RedisCluster:
    for node in shared.nodes:
        node.ask("FLUSHALL")
    return shared


def fill(engine: RemoteEngine) -> None:
    for name in NAMES:
        write(engine, name, name.encode())


def all_there(engine: RemoteEngine) -> bool:
    heads, _ = engine.look(NAMES, 100)
    parts = engine.read([Part(name, 0, 0, len(name)) for name in NAMES])
    return heads == parts == [name.encode() for name in NAMES]


def test_values_lie_on_all_nodes_and_are_asked_for_at_once(cluster: RedisCluster) -> None:
    with engine_at(cluster.url) as engine:
        fill(engine)
        assert all(node.ask("DBSIZE") > 50 for node in cluster.nodes)
        assert all_there(engine)
        engine.add("set", "member")
        assert engine.look(["absent"], 4, ["set"]) == ([None], [["member"]])
        engine.ping()
        assert engine.delete([*NAMES, "absent"]) == len(NAMES)


def test_a_slot_that_moved_is_found_where_it_went(cluster: RedisCluster) -> None:
    with engine_at(cluster.url) as engine:
        fill(engine)
        assert all_there(engine)
        for name in NAMES[:20]:
            cluster.move(name, cluster.other(cluster.owner(name)))
        assert all_there(engine)
        redirected = [node.calls("getrange") for node in cluster.nodes]
        assert engine.look(NAMES[:20], 100)[0] == [name.encode() for name in NAMES[:20]]
        asked = [node.calls("getrange") for node in cluster.nodes]
        assert sum(asked) - sum(redirected) == 20, "the map was learned"
        assert write(engine, NAMES[0], b"new", replace=True)
        cluster.settled()


def test_keys_of_a_slot_on_its_way_are_found_on_either_side(cluster: RedisCluster) -> None:
    """ASK: some keys of the slot have moved, others have not, and new ones go to the target."""
    names = [f"{{tag}}-{n}" for n in range(6)]
    with engine_at(cluster.url) as engine:
        for name in names[:4]:
            write(engine, name, name.encode())
        target = cluster.other(cluster.owner("{tag}"))
        source = cluster.begin_to_move("{tag}", target)
        for name in names[:2]:
            source.ask("MIGRATE", "127.0.0.1", target.port, name, 0, 30_000)
        expected = [name.encode() for name in names[:4]] + [None, None]
        assert engine.look(names, 100)[0] == expected
        assert engine.read([Part(name, 0, 0, 100) for name in names]) == expected
        assert write(engine, names[4], b"new")
        assert not write(engine, names[0], b"there already")
        assert cluster.move_keys("{tag}", source, target) == 2
        cluster.end_move("{tag}", target)
        assert engine.look(names, 3)[0] == [*[b"{ta"] * 4, b"new", None]
        cluster.settled()


@pytest.mark.nightly
def test_a_stopped_node_costs_its_time_out_and_the_others_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(breaker, "FIRST_SECONDS", 600.0)
    monkeypatch.setattr(breaker, "LONGEST_SECONDS", 600.0)
    with (
        redis_cluster() as cluster,
        engine_at(cluster.url, lookup_seconds=0.3, read_seconds=0.5) as engine,
    ):
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
        fill(engine)
        assert all_there(engine)
        mine = [name for name in NAMES if cluster.owner(name) is cluster.nodes[0]]
        cluster.nodes[0].process.suspend()
        assert reason_of(engine.look, mine, 100).reason == "timeout"
        for _ in range(breaker.FAILURES):
            heads, _ = engine.look(NAMES, 100)
            assert [n for n, head in zip(NAMES, heads, strict=True) if head is None] == mine
        # By now it is left alone, and takes nothing.
        assert engine.look(mine, 100) == ([None] * len(mine), [])
        assert not write(engine, mine[0], b"new")
        engine.ping()
        cluster.nodes[0].process.resume()
        cluster.settled()
        with engine_at(cluster.url) as again:
            assert all_there(again)


@pytest.mark.nightly
def test_a_replica_takes_over_and_is_read_without_a_restart() -> None:
    with redis_cluster(replicas=1) as cluster, engine_at(cluster.url) as engine:
        fill(engine)
        cluster.replicated()
        lost = cluster.nodes[0]
        lost.process.kill()
        troubles = []
        while len(troubles) < 10:
            try:
                if all_there(engine):
                    break
                troubles.append("lost")
            except RemoteError as error:
                troubles.append(error.reason)
            cluster.settled()
        assert len(troubles) <= 2
        assert set(troubles) <= {"refused", "lost", "throttled"}


def test_a_single_server_is_no_cluster(cluster: RedisCluster) -> None:
    with engine_at(f"redis://{cluster.nodes[0].place}") as engine:
        foreign = next(n for n in NAMES if cluster.owner(n) is not cluster.nodes[0])
        error = reason_of(engine.look, [foreign], 4)
        assert error.reason == "error"
        assert "redis+cluster://" in str(error)
