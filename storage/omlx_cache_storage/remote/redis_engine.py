"""Valkey and Redis as an engine: a single server, one that a Sentinel names, or a cluster.

A value is the key of its head and of `<name>#<n>` for each part behind that. The head is written
last and read first: without it there is no value, and parts without a head expire by themselves.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import redis
from redis import exceptions as failures
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from omlx_cache_storage.page import Buffer
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import Part, RemoteError, Trouble
from omlx_cache_storage.remote.options import RemoteOptions

PART_BYTES = 8 << 20
"""A server answers one command at a time: what is longer holds up everybody else's."""
ASKS_TOGETHER = 1 << 20
PIPELINE = 1024
"""Commands that are sent at once: more would fill both sides' buffers."""
T = TypeVar("T")

_TROUBLES: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Trouble], ...] = (
    (failures.AuthenticationError, "auth"),
    (failures.AuthorizationError, "auth"),
    (failures.NoPermissionError, "auth"),
    (failures.BusyLoadingError, "throttled"),
    (failures.TryAgainError, "throttled"),
    (failures.ClusterDownError, "throttled"),
    (failures.MaxConnectionsError, "throttled"),
    (failures.OutOfMemoryError, "full"),
    (failures.TimeoutError, "timeout"),
    (failures.ConnectionError, "lost"),
    (TimeoutError, "timeout"),
    (ConnectionRefusedError, "refused"),
    (OSError, "lost"),
)


class RedisEngine:
    """Values in a Valkey or Redis store. Connects when it is first asked."""

    part_bytes: int | None = PART_BYTES
    asks_together = ASKS_TOGETHER

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        self._address = address
        self._options = options
        self._ttl_ms = options.ttl_seconds * 1000 or None
        self._client: Any = None if address.kind == "cluster" else self._connected()

    def ping(self) -> None:
        self._call(lambda client: client.ping())

    def look(
        self, names: Sequence[str], nbytes: int, sets: Sequence[str] = ()
    ) -> tuple[list[bytes | None], list[list[str]]]:
        commands: list[tuple[Any, ...]] = [("GETRANGE", name, 0, nbytes - 1) for name in names]
        commands += [("SMEMBERS", name) for name in sets]
        answers = self._pipelined(commands)
        heads = [head or None for head in answers[: len(names)]]
        members = [sorted(map(_text, found)) for found in answers[len(names) :]]
        return heads, members

    def read(self, parts: Sequence[Part]) -> list[Buffer | None]:
        return self._pipelined([("GET", part_name(part.name, part.number)) for part in parts])

    def write(self, name: str, parts: Sequence[Sequence[Buffer]], *, replace: bool) -> bool:
        took = None
        for number, pieces in reversed(list(enumerate(parts))):
            took = self._set(part_name(name, number), pieces, fresh=not (number or replace))
        return took is not None

    def _set(self, key: str, pieces: Sequence[Buffer], *, fresh: bool) -> object:
        value = b"".join(pieces)
        return self._call(lambda client: client.set(key, value, px=self._ttl_ms, nx=fresh))

    def add(self, set_name: str, member: str) -> None:
        commands: list[tuple[Any, ...]] = [("SADD", set_name, member)]
        if self._ttl_ms:
            commands.append(("PEXPIRE", set_name, self._ttl_ms))
        self._pipelined(commands)

    def delete(self, names: Sequence[str]) -> int:
        lengths = self._pipelined([("STRLEN", name) for name in names])
        gone = self._pipelined([("DEL", name) for name in names])
        rest = [
            ("DEL", part_name(name, number))
            for name, length in zip(names, lengths, strict=True)
            if length >= PART_BYTES
            for number in range(1, self._parts_of(name))
        ]
        self._pipelined(rest)
        return sum(gone)

    def info(self, section: str = "default") -> dict[str, Any]:
        """Return what a server says of itself; of a cluster, one of its nodes."""
        found: dict[str, Any] = self._call(lambda client: client.info(section))
        return found

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except Exception:
                return

    def _parts_of(self, name: str) -> int:
        """Return up to which number a value that was deleted may have parts."""
        number = 1
        while self._pipelined([("EXISTS", part_name(name, number))])[0]:
            number += 1
        return number

    def _pipelined(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the answers to commands, all sent before the first is awaited."""
        answers: list[Any] = []
        for some in _batched(commands, PIPELINE):
            answers += self._call(partial(_piped, commands=some))
        return answers

    def _call(self, call: Callable[[Any], T]) -> T:
        try:
            if self._client is None:
                self._client = self._connected()
            return call(self._client)
        except RemoteError:
            raise
        except Exception as error:
            raise _trouble(error) from None

    def _connected(self) -> Any:
        address, options = self._address, self._options
        common: dict[str, Any] = {
            "username": address.user,
            "password": options.password if options.password is not None else address.password,
            "socket_timeout": options.read_seconds,
            "socket_connect_timeout": min(options.lookup_seconds, options.read_seconds),
            "socket_keepalive": True,
            "decode_responses": False,
            "retry": Retry(NoBackoff(), 0),
            **self._tls(),
        }
        if address.kind == "cluster":
            nodes = [ClusterNode(host.name, host.port) for host in address.hosts]
            return RedisCluster(
                startup_nodes=nodes,
                max_connections=options.connections,
                **{**common, "retry": Retry(NoBackoff(), 2)},
            )
        if address.kind == "sentinel":
            sentinel = Sentinel(
                [(host.name, host.port) for host in address.hosts],
                sentinel_kwargs={
                    "socket_timeout": options.read_seconds,
                    "socket_connect_timeout": options.lookup_seconds,
                },
                **common,
            )
            return sentinel.master_for(address.path)
        host = address.hosts[0]
        pool = redis.BlockingConnectionPool(
            host=host.name,
            port=host.port,
            db=address.database,
            max_connections=options.connections + 4,
            timeout=options.read_seconds,
            connection_class=redis.SSLConnection if address.tls else redis.Connection,
            **{name: value for name, value in common.items() if name != "ssl"},
        )
        return redis.Redis.from_pool(pool)

    def _tls(self) -> dict[str, Any]:
        if not self._address.tls:
            return {}
        files = self._address.options
        given: dict[str, Any] = {"ssl": True}
        given |= {
            name: files[option]
            for option, name in (
                ("ca", "ssl_ca_certs"),
                ("cert", "ssl_certfile"),
                ("key", "ssl_keyfile"),
            )
            if option in files
        }
        return given


def part_name(name: str, number: int) -> str:
    """Return the key of a part; the head has the value's own name."""
    return f"{name}#{number}" if number else name


def _piped(client: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    if len(commands) == 1:
        return [client.execute_command(*commands[0])]
    is_cluster = isinstance(client, RedisCluster)
    pipe = client.pipeline() if is_cluster else client.pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command)
    answers: list[Any] = pipe.execute()
    return answers


def _batched(commands: Sequence[T], most: int) -> Iterator[list[T]]:
    left = iter(commands)
    while batch := list(islice(left, most)):
        yield batch


def _text(member: bytes) -> str:
    return member.decode("ascii", "replace")


def _trouble(error: Exception) -> RemoteError:
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ConnectionRefusedError) or "refused" in str(error).lower():
        return RemoteError("refused", "nobody listens there")
    if isinstance(error, failures.ResponseError) and str(error).startswith(("OOM", "MISCONF")):
        return RemoteError("full", str(error))
    if isinstance(error, failures.ResponseError) and str(error).startswith(
        ("NOAUTH", "WRONGPASS", "NOPERM")
    ):
        return RemoteError("auth", str(error).partition(" ")[0])
    for kind, trouble in _TROUBLES:
        if isinstance(error, kind):
            return RemoteError(trouble, f"{type(error).__name__}: {error}")
    return RemoteError("error", f"{type(error).__name__}: {error}")
