"""Valkey and Redis as an engine: a single server, one that a Sentinel names, or a cluster.

A value is the key of its head and of `<name>#<n>` for each part behind that. The head is written
last and read first: without it there is no value, and parts expire as values do. Where values have
no time to live (`ttl_seconds` 0), the store's own eviction deletes them, so its policy has to be
`allkeys-lru` there. Any other takes `volatile-lru`.
"""

import os
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import redis
from redis import exceptions as failures
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from omlx_cache_storage.io_threads import ReaderPool
from omlx_cache_storage.page import Buffer
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import (
    MEMBERS,
    BackOff,
    Part,
    RemoteError,
    RemoteOptions,
    all_of,
)
from omlx_cache_storage.remote.redis_connections import (
    PART_BYTES,
    BoundedConnection,
    BoundedMasterConnection,
    BoundedTlsConnection,
    BoundedTlsMasterConnection,
    allowed,
    trouble,
)

Command = tuple[Any, ...]

ASKS_TOGETHER = 1 << 20
PIPELINE = 1024
TOGETHER = 4
"""Parts that a server is asked for at once: it keeps answers in its memory until they are taken."""
WRITING_MS = 60_000
"""How long a writer of parts has before another one may take it for dead."""
_PARTS = 16
_ASKED_AT_ONCE = 16
_AWAY = ("refused", "lost", "timeout")


class RedisEngine:
    """Values in a Valkey or Redis store: one server, or the master that Sentinels name. Connects
    when it is first asked, and tries nothing again but what another node is said to have.

    `_pools` has every pool that was made; appending is atomic. `_closed` is set once.
    """

    part_bytes: int | None = PART_BYTES
    asks_together = ASKS_TOGETHER

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        self._ttl_ms = options.ttl_seconds * 1000
        self._password = address.password if options.password is None else options.password
        self._address = address
        # A name in a server's list of clients costs two round trips for a connection. With TLS
        # their answers take along the session tickets that a server sends unasked, which the pool
        # would take for unread answers.
        tls = _tls(address) or {"driver_info": None}
        self._anonymous: dict[str, Any] = {
            "allowed": partial(allowed, options.read_seconds),
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
            "password": self._password,
            "db": int(address.path or 0) if address.kind == "redis" else 0,
        }
        self._pools: list[redis.ConnectionPool] = []
        self._closed = False
        self._client: Any = self._made()

    def ping(self) -> None:
        self._ask("PING")

    def look(
        self, names: Sequence[str], nbytes: int, sets: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[list[str]]]:
        commands: list[Command] = [("GETRANGE", name, 0, nbytes - 1) for name in names]
        commands += [("ZRANGE", name, 0, -1) for name in sets]
        answers = self._answers(commands)
        heads = [_typed(head, bytes) or None for head in answers[: len(names)]]
        members = [
            [(_typed(one, bytes) or b"").decode("ascii", "replace") for one in _typed(found, list)]
            for found in answers[len(names) :]
        ]
        return heads, members

    def read(self, parts: Sequence[Part]) -> list[Buffer | None]:
        found: list[Buffer | None] = []
        for first in range(0, len(parts), TOGETHER):
            some = parts[first : first + TOGETHER]
            answers = self._answers([("GET", part_name(one.name, one.number)) for one in some])
            found += [_typed(answer, bytes | bytearray) for answer in answers]
        return found

    def write(self, name: str, parts: Sequence[Sequence[Buffer]], *, replace: bool) -> bool:
        """Publish a value; False also while another writer publishes one with parts."""
        if len(parts) == 1:
            return self._set(name, parts[0], fresh=not replace)
        # Two writers' parts of one value may differ, as encryption makes them: never mix them.
        writing, mine = f"{name}#writing", os.urandom(8)
        if self._answers([("SET", writing, mine, "NX", "PX", WRITING_MS)])[0] is None:
            return False
        try:
            if not replace and self._answers([("EXISTS", name)])[0]:
                return False
            for number in reversed(range(1, len(parts))):
                self._set(part_name(name, number), parts[number], fresh=False)
            return self._set(name, parts[0], fresh=not replace)
        finally:
            # Unless it took so long that another one took it for dead.
            with suppress(RemoteError):
                if self._answers([("GET", writing)])[0] == mine:
                    self._unlink([writing])

    def add(self, set_name: str, member: str) -> None:
        commands: list[Command] = [
            ("ZADD", set_name, time.time(), member),
            ("ZREMRANGEBYRANK", set_name, 0, -MEMBERS - 1),
        ]
        if self._ttl_ms:
            commands.append(("PEXPIRE", set_name, self._ttl_ms))
        self._answers(commands)

    def delete(self, names: Sequence[str]) -> int:
        gone = self._unlink(names)
        for name in names:
            first = 1
            while self._unlink([part_name(name, n) for n in range(first, first + _PARTS)]):
                first += _PARTS
        return gone

    def info(self, section: str = "default") -> dict[str, str]:
        return {name: str(value) for name, value in self._ask("INFO", section).items()}

    def close(self) -> None:
        """Close connections, also those that threads wait on; nothing connects again."""
        self._closed = True
        for pool in list(self._pools):
            pool.disconnect()

    def _set(self, key: str, pieces: Sequence[Buffer], *, fresh: bool) -> bool:
        value = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        only = ("NX",) if fresh else ()
        expiry = ("PX", self._ttl_ms) if self._ttl_ms else ()
        return self._answers([("SET", key, value, *only, *expiry)])[0] is not None

    def _unlink(self, names: Sequence[str]) -> int:
        return sum(self._answers([("UNLINK", name) for name in names]))

    def _answers(self, commands: Sequence[Command]) -> list[Any]:
        answers: list[Any] = []
        for first in range(0, len(commands), PIPELINE):
            answers += self._sent(commands[first : first + PIPELINE])
        for answer in answers:
            if isinstance(answer, Exception):
                raise self._trouble(answer)
        return answers

    def _ask(self, *command: Any) -> Any:
        return self._answers([command])[0]

    def _sent(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answer to each command, all sent before the first is awaited; an error that a
        server answered with stands where its answer would. Raises RemoteError when it gives
        none."""
        answers = self._piped(self._client, commands)
        if any(isinstance(answer, failures.AskError) for answer in answers):
            raise RemoteError("error", "the server is one of a cluster: use redis+cluster://")
        return answers

    def _trouble(self, error: Exception) -> RemoteError:
        if self._closed:
            # A client whose socket is closed under it may raise any error.
            return RemoteError("lost", "the engine is closed")
        return trouble(error, self._password)

    def _made(self) -> Any:
        if self._address.kind != "sentinel":
            pool = self._pool(*self._address.hosts[0], self._arguments)
            return redis.Redis(connection_pool=pool)
        manager: Any = _Sentinels([])  # type: ignore[no-untyped-call]
        # A Sentinel has users of its own; where it wants one, it is the same.
        wanted = [self._anonymous] + ([self._arguments] if self._password else [])
        manager.sentinels = [
            redis.Redis(connection_pool=self._pool(*host, arguments))
            for arguments in wanted
            for host in self._address.hosts
        ]
        kind = BoundedTlsMasterConnection if self._address.tls else BoundedMasterConnection
        pool = SentinelConnectionPool(
            self._address.path, manager, connection_class=kind, **self._arguments
        )
        self._pools.append(pool)
        return redis.Redis(connection_pool=pool)

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
                return answers
        except Exception as error:
            raise self._trouble(error) from None

    def _begin(self, connection: Any) -> None:
        """Greet a server; a thread that lost its connection to `close` gets no other."""
        if self._closed:
            raise failures.ConnectionError("the engine is closed")
        connection.on_connect()


class _Sentinels(Sentinel):
    """Sentinels as the client asks them, which raise what kept them from answering."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        worst: Exception = MasterNotFoundError(f"no Sentinel knows a master named {service_name!r}")
        for sentinel in self.sentinels:
            try:
                named: Any = sentinel.sentinel_get_master_addr_by_name(service_name)
                if named is not None:
                    return named[0].decode(), named[1]
            except (failures.ConnectionError, failures.TimeoutError) as error:
                is_first = isinstance(worst, MasterNotFoundError)
                if is_first or isinstance(error, failures.AuthenticationError):
                    worst = error
        raise worst


class ClusterEngine(RedisEngine):
    """Values on the nodes of a cluster, as its client finds them: each is asked on a thread of its
    own.

    A node that fails, while others answer, is taken to have nothing and to take nothing. After some
    failures in a row the engine backs off from it. `_lock` guards `_client` and `_stale`, also
    while the client asks for the map of slots; `_back_offs` is only added to.
    """

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        self._lock = threading.Lock()
        self._stale = False
        self._back_offs: defaultdict[str, BackOff] = defaultdict(partial(BackOff, what="a node"))
        self._threads = ReaderPool(_ASKED_AT_ONCE, "omlx-cache-remote-node")
        super().__init__(address, options)

    def _sent(self, commands: Sequence[Command]) -> list[Any]:
        """Return the answers of all nodes; raises RemoteError when none answers, and one failed."""
        client = self._current()
        places: defaultdict[Any, list[int]] = defaultdict(list)
        for at, command in enumerate(commands):
            owners = client.nodes_manager.slots_cache.get(client.keyslot(command[1]), ())
            for owner in owners[:1]:
                places[owner].append(at)
        calls = [
            partial(self._tried, node, [commands[at] for at in numbers])
            for node, numbers in places.items()
        ]
        found = dict(zip(places, all_of(self._threads, calls), strict=True))
        failed = [one for one in found.values() if isinstance(one, RemoteError)]
        fresh = [one for one in failed if one.reason != "resting"]
        serious = [one for one in fresh if one.reason not in _AWAY]
        if serious or (fresh and len(failed) == len(found)):
            raise (serious or fresh)[0]
        answers = [_nothing(command) for command in commands]
        for node, given in found.items():
            if not isinstance(given, RemoteError):
                for at, answer in zip(places[node], given, strict=True):
                    if isinstance(answer, failures.AskError):
                        # Its slot has moved, or is on its way: the client knows where to ask then.
                        (answer,) = self._piped(client, [commands[at]])
                    answers[at] = answer
        return answers

    def _ask(self, *command: Any) -> Any:
        worst = RemoteError("throttled", "no node of the cluster serves any slot")
        for node in self._current().get_primaries():
            found = self._tried(node, [command])
            if not isinstance(found, RemoteError):
                if isinstance(found[0], Exception):
                    raise self._trouble(found[0])
                return found[0]
            worst = found
        raise worst

    def close(self) -> None:
        super().close()
        self._threads.stop(0.0)

    def _made(self) -> Any:
        return None

    def _current(self) -> Any:
        with self._lock:
            try:
                if self._client is None:
                    first, *others = self._address.hosts
                    name = f"[{first.name}]" if ":" in first.name else first.name
                    self._client = RedisCluster(
                        url=f"redis://{name}:{first.port}",
                        startup_nodes=[ClusterNode(*host) for host in others],
                        connection_pool_class=self._node_pool,
                        require_full_coverage=False,
                        protocol=2,
                        retry=Retry(NoBackoff(), 0),
                    )
                elif self._stale:
                    self._client.nodes_manager.initialize()
                self._stale = False
            except Exception as error:
                # Another one begins with the hosts that were configured.
                self._client = None
                raise self._trouble(error) from None
            return self._client

    def _node_pool(self, *, host: str, port: int, **_: Any) -> redis.ConnectionPool:
        return self._pool(host, port, self._arguments)

    def _tried(self, node: Any, commands: Sequence[Command]) -> "list[Any] | RemoteError":
        back_off = self._back_offs[node.name]
        try:
            back_off.enter()
            answers = self._piped(node.redis_connection, commands)
        except RemoteError as error:
            if error.reason != "resting":
                # A replica may take over the node's values.
                self._stale = True
                back_off.failed(f"{node.name}: {error}")
            return error
        back_off.succeeded()
        return answers


def part_name(name: str, number: int) -> str:
    return f"{name}#{number}" if number else name


def _typed(answer: Any, kind: Any) -> Any:
    if answer is not None and not isinstance(answer, kind):
        raise RemoteError("lost", "the server answered something else than was asked")
    return answer


def _nothing(command: Command) -> Any:
    return [] if command[0] == "ZRANGE" else None if command[0] in ("GET", "GETRANGE", "SET") else 0


def _tls(address: RemoteAddress) -> dict[str, Any]:
    """Return the client's arguments for TLS; raises ValueError for files that cannot be used."""
    if not address.tls:
        return {}
    ca, cert, key = (address.options.get(name) for name in ("ca", "cert", "key"))
    if key and not cert:
        raise ValueError("key= is the key of a certificate: give cert=FILE too")
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        given = {"ca": ca, "cert": cert, "key": key}
        files = " and ".join(f"{name}={file}" for name, file in given.items() if file)
        raise ValueError(f"{files} cannot be used as certificates: {error}") from None
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
