"""Servers of Valkey or Redis that belong together on loopback: a cluster, or a master with a
replica and a Sentinel."""

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot

from .processes import NotYet, eventually
from .redis_servers import LOCAL, RedisServer, program

_BUS = 10_000
_NODE_TIMEOUT_MS = 1_500
SERVICE = "pages"


class RedisCluster:
    """The nodes of a cluster, masters first."""

    def __init__(self, nodes: Sequence[RedisServer]) -> None:
        self.nodes = list(nodes)

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(node.place for node in self.nodes)}"

    def owner(self, key: str) -> RedisServer:
        """Return the node that has a key's slot, as the first node that answers says."""
        slot = key_slot(key.encode())
        for first, last, (_, port, *_), *_ in self._slots():
            if first <= slot <= last:
                return self._node(port)
        raise AssertionError(f"nobody has slot {slot}")

    def other(self, *nodes: RedisServer) -> RedisServer:
        """Return a master that is none of these."""
        masters = [self._node(port) for _, _, (_, port, *_), *_ in self._slots()]
        return next(master for master in masters if master not in nodes)

    def begin_to_move(self, key: str, target: RedisServer) -> RedisServer:
        """Let a key's slot be on its way to a node: what is there stays with the source, which is
        returned, until it is moved."""
        slot, source = key_slot(key.encode()), self.owner(key)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(target))
        return source

    def move_keys(self, key: str, source: RedisServer, target: RedisServer) -> int:
        """Move what the source has of a key's slot; return how many keys."""
        slot = key_slot(key.encode())
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        for one in keys:
            source.ask("MIGRATE", LOCAL, target.port, one, 0, 30_000)
        return len(keys)

    def end_move(self, key: str, target: RedisServer) -> None:
        """Give a key's slot to its target, which the other nodes are told."""
        slot, name = key_slot(key.encode()), _id(target)
        for node in [target, *(node for node in self.nodes if node is not target)]:
            with contextlib.suppress(redis.ResponseError):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", name)

    def move(self, key: str, target: RedisServer) -> None:
        """Move a key's slot with all that is in it to another node."""
        source = self.begin_to_move(key, target)
        self.move_keys(key, source, target)
        self.end_move(key, target)

    def replicated(self) -> None:
        """Wait until every master's replicas have what it has."""
        for node in self.nodes:
            if b"role:master" in node.ask("INFO", "replication"):
                replicas_have_all(node)

    def settled(self) -> None:
        """Wait until all nodes that are left say that all slots are served, by the same of them."""
        eventually(self._agree, "agreeing on a cluster", 60)

    def _agree(self) -> None:
        seen = set()
        for node in self._alive():
            state = bytes(node.ask("CLUSTER", "INFO")).decode()
            if "cluster_state:ok" not in state:
                raise NotYet(state[:200])
            slots = sorted((first, last, one[1]) for first, last, one, *_ in _slots(node))
            seen.add(str(slots))
            if gone := {port for *_, port in slots} - {one.port for one in self._alive()}:
                raise NotYet(f"{gone} had slots and are gone")
        if len(seen) != 1:
            raise NotYet(str(seen)[:400])

    def _alive(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.process.runs]

    def _slots(self) -> Any:
        return _slots(self._alive()[0])

    def _node(self, port: int) -> RedisServer:
        return next(node for node in self.nodes if node.port == port)


@contextlib.contextmanager
def redis_cluster(*settings: str, masters: int = 3, replicas: int = 0) -> Iterator[RedisCluster]:
    """Run a cluster, made as people make one; `replicas` is for each master."""
    cli = program("cli")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ending:
        nodes = []
        for number in range(masters * (1 + replicas)):
            directory = Path(name) / str(number)
            directory.mkdir()
            node = RedisServer(
                directory,
                "cluster-enabled yes",
                f"cluster-node-timeout {_NODE_TIMEOUT_MS}",
                "cluster-replica-validity-factor 0",
                "repl-diskless-sync-delay 0",
                *settings,
                bus=_BUS,
            )
            ending.callback(node.process.kill)
            node.start()
            nodes.append(node)
        places = [node.place for node in nodes]
        more = ["--cluster-replicas", str(replicas)] if replicas else []
        subprocess.run(
            [cli, "--cluster", "create", *places, *more, "--cluster-yes"],
            check=True,
            timeout=120,
            capture_output=True,
        )
        cluster = RedisCluster(nodes)
        cluster.settled()
        if replicas:
            eventually(lambda: _replicated(nodes, masters), "replicating")
        yield cluster


class Sentinels:
    """A master, its replicas, and a Sentinel that makes one of them the master when it is gone."""

    def __init__(
        self, servers: Sequence[RedisServer], sentinels: Sequence[RedisServer], scheme: str
    ) -> None:
        self.servers = list(servers)
        self.sentinels = list(sentinels)
        self._scheme = scheme

    @property
    def url(self) -> str:
        places = ",".join(sentinel.place for sentinel in self.sentinels)
        return f"{self._scheme}+sentinel://{places}/{SERVICE}"

    def master(self) -> RedisServer:
        """Return the server that the first Sentinel names."""
        _, port = self.sentinels[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self.servers if server.port == int(port))

    def failed_over(self, before: RedisServer) -> RedisServer:
        """Wait until another server is the master, and return it."""

        def another() -> RedisServer:
            master = self.master()
            if master is before or b"role:master" not in master.ask("INFO", "replication"):
                raise NotYet(f"{master.place} is the master")
            return master

        return eventually(another, "failing over", 90)


@contextlib.contextmanager
def redis_sentinels(
    *,
    password: str | None = None,
    sentinel_password: str | None = None,
    down_after_seconds: float = 600,
) -> Iterator[Sentinels]:
    """Run a master, a replica and one Sentinel. `password` is the servers', `sentinel_password` the
    Sentinel's own. Whoever kills a master wants a short `down_after_seconds`; elsewhere a master
    that only has to wait for this machine is not to be replaced."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as ending:

        def started(kind: str, *settings: str, mode: str = "", secret: str | None) -> RedisServer:
            directory = Path(name) / kind
            directory.mkdir()
            lines = [f"requirepass {secret}"] if secret else []
            admin = (None, secret)
            server = RedisServer(directory, *settings, *lines, admin=admin, mode=mode)
            ending.callback(server.process.kill)
            server.start()
            return server

        auth = (f"masterauth {password}",) if password else ()
        fast = "repl-diskless-sync-delay 0"
        first = started("first", fast, *auth, secret=password)
        of_first = f"replicaof {LOCAL} {first.port}"
        second = started("second", fast, of_first, *auth, secret=password)
        watch = [
            f"sentinel monitor {SERVICE} {LOCAL} {first.port} 1",
            f"sentinel down-after-milliseconds {SERVICE} {down_after_seconds * 1000:.0f}",
            f"sentinel failover-timeout {SERVICE} 3000",
            *([f"sentinel auth-pass {SERVICE} {password}"] if password else []),
        ]
        watcher = started("sentinel", *watch, mode="sentinel", secret=sentinel_password)
        eventually(lambda: _replicated([first, second], 1), "replicating")
        sentinels = Sentinels([first, second], [watcher], "redis")
        eventually(lambda: _sees_replica(watcher), "finding the replica")
        yield sentinels


def replicas_have_all(master: RedisServer) -> None:
    """Wait until a master's replicas have what it has."""

    def same() -> None:
        said = bytes(master.ask("INFO", "replication")).decode()
        (ours,) = re.findall(r"master_repl_offset:(\d+)", said)
        theirs = re.findall(r"slave\d+:.*,offset=(\d+)", said)
        if not theirs or min(map(int, theirs)) < int(ours):
            raise NotYet(f"{theirs} of {ours}")

    eventually(same, "replicating")


def _id(node: RedisServer) -> str:
    return bytes(node.ask("CLUSTER", "MYID")).decode()


def _slots(node: RedisServer) -> Any:
    return node.ask("CLUSTER", "SLOTS")


def _replicated(nodes: Sequence[RedisServer], masters: int) -> None:
    linked = [b"master_link_status:up" in node.ask("INFO", "replication") for node in nodes]
    if sum(linked) < len(nodes) - masters:
        raise NotYet(f"{sum(linked)} replicas are linked")


def _sees_replica(sentinel: RedisServer) -> None:
    if not sentinel.ask("SENTINEL", "REPLICAS", SERVICE):
        raise NotYet("no replica yet")
