"""The clients of the `redis` package for one server, a Sentinel's master and a cluster: connections
with bounded answers, commands in pipelines, and every error in the remote tier's words."""

import ssl
import threading
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import redis
from redis import exceptions as failures
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from omlx_cache_storage.breaker import CircuitBreaker
from omlx_cache_storage.readers import ReaderPool, result_along
from omlx_cache_storage.remote.address import Host, RemoteAddress
from omlx_cache_storage.remote.bounded import (
    AnswerLimit,
    BoundedConnection,
    BoundedMasterConnection,
    BoundedTlsConnection,
    BoundedTlsMasterConnection,
    Commands,
)
from omlx_cache_storage.remote.engine import MEMBERS, RemoteError
from omlx_cache_storage.remote.options import RemoteOptions
from omlx_cache_storage.remote.redis_errors import trouble

Command = tuple[Any, ...]

PART_BYTES = 4 << 20
"""A server answers one command at a time: what is longer holds up everybody else's. Parts of 8 MiB
came at half the rate on loopback. Writers and readers have to cut alike: it is never changed."""
_MEMBER_BYTES = 512
"""No member of a set is as long: a tail's key, its group and three numbers."""
_WORD_BYTES = 512
"""A number, a word, an error, and what frames an answer."""
_SAID_BYTES = 1 << 20
"""What a server says of itself: INFO, its commands, or the ranges that a large cluster has."""
_LEAST_RATE = 64 << 10
"""Bytes a second: values that come slower are given up."""
_ASKED_AT_ONCE = 16
"""Nodes of a cluster that all calls together wait for."""
_AWAY = ("refused", "lost", "timeout")


class RedisServer:
    """One server, or the master that Sentinels name. Any thread; a call waits for the network.

    `_pools` has every pool that was made; appending is atomic. `_closed` is set once.
    """

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        given = options.password if options.password is not None else address.password
        self._password = given
        self._address = address
        # Without TLS, two round trips less for a connection: a name in a server's list of clients.
        # With it, their answers take along the session tickets that a server sends unasked, which
        # the pool would take for answers that nobody read.
        tls = _tls(address) or {"driver_info": None}
        self._anonymous: dict[str, Any] = {
            "allowed": partial(_allowed, options.read_seconds),
            "redis_connect_func": self._begin,
            "socket_timeout": options.read_seconds,
            "socket_connect_timeout": min(options.lookup_seconds, options.read_seconds),
            "socket_keepalive": True,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            **tls,
        }
        self._arguments = {
            **self._anonymous,
            "username": address.user,
            "password": given,
            "db": address.database if address.kind == "redis" else 0,
        }
        self._pools: list[redis.ConnectionPool] = []
        self._closed = False
        self._client = self._made()

    def answers(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answer to each command, all sent before the first is awaited; an error that a
        server answered with stands where its answer would. Raises RemoteError when it gives none.
        """
        answers = self._piped(self._client, commands)
        if any(isinstance(answer, failures.AskError) for answer in answers):
            raise RemoteError("error", "the server is one of a cluster: use redis+cluster://")
        return answers

    def ask(self, *command: Any) -> Any:
        """Return a server's answer to a command without a key; raises RemoteError, also for an
        error that it answers."""
        (answer,) = self.answers([command])
        if isinstance(answer, Exception):
            raise self.trouble(answer)
        return answer

    def trouble(self, error: Exception) -> RemoteError:
        """Return what to raise instead of an error of the client."""
        if self._closed:
            # Whatever it is that a client raises whose socket is closed under it.
            return RemoteError("lost", "the engine is closed")
        return trouble(error, self._password)

    def close(self) -> None:
        """Close connections, those that threads wait on too; nothing is connected again."""
        self._closed = True
        for pool in list(self._pools):
            pool.disconnect()

    def _made(self) -> Any:
        if self._address.kind != "sentinel":
            return self._at(self._address.hosts[0])
        manager: Any = _Sentinels([])  # type: ignore[no-untyped-call]
        # A Sentinel has users of its own; where it wants one, it is the same.
        wanted = [self._anonymous] + ([self._arguments] if self._password else [])
        manager.sentinels = [
            self._at(host, arguments) for arguments in wanted for host in self._address.hosts
        ]
        kind = BoundedTlsMasterConnection if self._address.tls else BoundedMasterConnection
        pool = SentinelConnectionPool(
            self._address.path, manager, connection_class=kind, **self._arguments
        )
        self._pools.append(pool)
        return redis.Redis(connection_pool=pool)

    def _at(self, host: Host, arguments: dict[str, Any] | None = None) -> Any:
        return redis.Redis(connection_pool=self._pool(*host, arguments or self._arguments))

    def _pool(self, host: str, port: int, arguments: dict[str, Any]) -> redis.ConnectionPool:
        kind: Any = BoundedTlsConnection if self._address.tls else BoundedConnection
        pool = redis.ConnectionPool(connection_class=kind, host=host, port=port, **arguments)
        self._pools.append(pool)
        return pool

    def _piped(self, client: Any, commands: Sequence[Command]) -> list[Any]:
        try:
            with client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                answers: list[Any] = pipeline.execute(raise_on_error=False)
        except Exception as error:
            raise self.trouble(error) from None
        return answers

    def _begin(self, connection: Any) -> None:
        """Greet a server; a thread that lost its connection to `close` gets no other."""
        if self._closed:
            raise failures.ConnectionError("the engine is closed")
        connection.on_connect()


class _Sentinels(Sentinel):
    """Sentinels as the client asks them, which raise what kept them from answering."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        worst: Exception | None = None
        for sentinel in self.sentinels:
            try:
                named: Any = sentinel.sentinel_get_master_addr_by_name(service_name)
            except (failures.ConnectionError, failures.TimeoutError) as error:
                if worst is None or isinstance(error, failures.AuthenticationError):
                    worst = error
                continue
            if named is not None:
                return named[0].decode(), named[1]
        raise worst or MasterNotFoundError(f"no Sentinel knows a master named {service_name!r}")


class ClusterNodes(RedisServer):
    """The nodes of a cluster, as its client finds them: each is asked on a thread of its own.

    A node that fails, while others answer, is taken to have nothing and to take nothing; after some
    failures in a row it is left alone for a while. `_lock` guards `_client` and `_stale`, also
    while the client asks who has what; `_breakers_lock` guards `_breakers`.
    """

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        self._lock = threading.Lock()
        self._stale = False
        self._breakers_lock = threading.Lock()
        self._breakers: defaultdict[str, CircuitBreaker] = defaultdict(CircuitBreaker)
        self._threads = ReaderPool(_ASKED_AT_ONCE, "omlx-cache-remote-node")
        super().__init__(address, options)

    def answers(self, commands: Sequence[Command]) -> list[Any]:
        client = self._current()
        places: defaultdict[Any, list[int]] = defaultdict(list)
        answers = [_nothing(command) for command in commands]
        for at, command in enumerate(commands):
            owners = client.nodes_manager.slots_cache.get(client.keyslot(command[1]))
            if owners:
                places[owners[0]].append(at)
        self._ask_nodes(places, commands, answers)
        for at, answer in enumerate(answers):
            if isinstance(answer, failures.AskError):
                answers[at] = self._redirected(client, commands[at])
        return answers

    def ask(self, *command: Any) -> Any:
        """Return the answer of the first node that gives one."""
        worst: RemoteError | None = None
        for node in self._current().get_primaries():
            try:
                (answer,) = self._piped(node.redis_connection, [command])
            except RemoteError as error:
                worst = error
                continue
            if isinstance(answer, Exception):
                raise self.trouble(answer)
            return answer
        raise worst or RemoteError("throttled", "no node of the cluster serves any slot")

    def close(self) -> None:
        super().close()
        self._threads.stop(0.0)

    def _made(self) -> Any:
        return None

    def _current(self) -> Any:
        """Return the client; asks who has what when that is not known, or known to be wrong."""
        with self._lock:
            try:
                if self._client is None:
                    self._client = self._connected()
                elif self._stale:
                    self._client.nodes_manager.initialize()
                self._stale = False
            except Exception as error:
                # Another one begins with the hosts that were configured.
                self._client = None
                raise self.trouble(error) from None
            return self._client

    def _connected(self) -> RedisCluster:
        first, *others = self._address.hosts
        name = f"[{first.name}]" if ":" in first.name else first.name
        return RedisCluster(
            url=f"redis://{name}:{first.port}",
            startup_nodes=[ClusterNode(*host) for host in others],
            connection_pool_class=self._node_pool,
            require_full_coverage=False,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
        )

    def _node_pool(self, *, host: str, port: int, **_: Any) -> redis.ConnectionPool:
        return self._pool(host, port, self._arguments)

    def _ask_nodes(
        self, places: dict[Any, list[int]], commands: Sequence[Command], answers: list[Any]
    ) -> None:
        """Fill in what nodes answer; raises RemoteError when none did, and one failed."""
        asked = {
            node: [commands[at] for at in numbers]
            for node, numbers in places.items()
            if self._may_ask(node.name)
        }
        if len(asked) == 1:
            ((node, some),) = asked.items()
            found = {node: self._tried(node, some)}
        else:
            try:
                futures = {n: self._threads.submit(self._tried, n, s) for n, s in asked.items()}
            except RuntimeError:
                raise RemoteError("lost", "the engine is closed") from None
            found = {node: result_along(future) for node, future in futures.items()}
        failed = [one for one in found.values() if isinstance(one, RemoteError)]
        serious = [one for one in failed if one.reason not in _AWAY]
        if serious or (failed and len(failed) == len(found)):
            raise (serious or failed)[0]
        for node, given in found.items():
            if not isinstance(given, RemoteError):
                for at, answer in zip(places[node], given, strict=True):
                    answers[at] = answer

    def _may_ask(self, name: str) -> bool:
        with self._breakers_lock:
            return not self._breakers[name].is_open

    def _tried(self, node: Any, commands: Sequence[Command]) -> "list[Any] | RemoteError":
        try:
            answers = self._piped(node.redis_connection, commands)
        except RemoteError as error:
            # A replica may take over what the node had.
            self._stale = True
            with self._breakers_lock:
                self._breakers[node.name].failed()
            return error
        with self._breakers_lock:
            self._breakers[node.name].succeeded()
        return answers

    def _redirected(self, client: Any, command: Command) -> Any:
        """Return the answer to a command whose slot has moved, or is on its way."""
        try:
            return client.execute_command(*command)
        except failures.ResponseError as error:
            return error
        except Exception as error:
            raise self.trouble(error) from None


def _nothing(command: Command) -> Any:
    """Return what a node answers that has nothing, and takes nothing."""
    return [] if command[0] == "ZRANGE" else None if command[0] in ("GET", "GETRANGE", "SET") else 0


def _allowed(seconds: float, commands: Commands) -> AnswerLimit:
    """Return what the answers to commands may take: values have longer than words."""
    values = sum(command[0] == "GET" for command in commands)
    return AnswerLimit(sum(map(_most_bytes, commands)), seconds + values * PART_BYTES / _LEAST_RATE)


def _most_bytes(command: Sequence[Any]) -> int:
    """Return how long the answer to a command is, at most."""
    name = str(command[0]).partition(" ")[0]
    if name == "GETRANGE":
        return _WORD_BYTES + int(command[3]) + 1 - int(command[2])
    if name == "ZRANGE":
        return _WORD_BYTES + MEMBERS * _MEMBER_BYTES
    if name == "GET":
        return _WORD_BYTES + PART_BYTES
    return _SAID_BYTES if name in ("INFO", "CLUSTER", "COMMAND", "SENTINEL") else _WORD_BYTES


def _tls(address: RemoteAddress) -> dict[str, Any]:
    """Return the client's arguments for TLS; raises ValueError for files that cannot be used."""
    if not address.tls:
        return {}
    ca, cert, key = (address.options.get(name) for name in ("ca", "cert", "key"))
    if key and not cert:
        raise ValueError("key= is the key of a certificate: give cert=FILE too")
    try:
        context = ssl.create_default_context()
        if ca:
            context.load_verify_locations(ca)
    except OSError as error:
        raise ValueError(f"ca={ca} is no file of certificates: {error}") from None
    try:
        if cert:
            context.load_cert_chain(cert, key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        where = f"cert={cert}" + (f" and key={key}" if key else "")
        raise ValueError(f"{where} are no certificate with its key: {error}") from None
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        "ssl_ca_certs": ca,
        "ssl_certfile": cert,
        "ssl_keyfile": key,
    }


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase, and nobody is there to type it")
