"""Connections to servers of Valkey or Redis, by the `redis` package: a bounded pool for each, and
commands that go out to several servers before the first answer is awaited."""

import ssl
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis import exceptions as failures
from redis.backoff import NoBackoff
from redis.retry import Retry

from omlx_cache_storage.remote.address import Host, RemoteAddress
from omlx_cache_storage.remote.bounded import BoundedConnection, BoundedTlsConnection
from omlx_cache_storage.remote.engine import MEMBERS, RemoteError
from omlx_cache_storage.remote.options import RemoteOptions
from omlx_cache_storage.remote.redis_errors import trouble
from omlx_cache_storage.remote.redis_values import receive
from omlx_cache_storage.remote.slabs import Sink

Command = tuple[Any, ...]
Answers = list[Any]
"""One for each command; an error that a server answered with stands where its answer would."""

PART_BYTES = 4 << 20
"""A server answers one command at a time: what is longer holds up everybody else's. Parts of 8 MiB
came at half the rate on loopback. Writers and readers have to cut alike: it is never changed."""
_BESIDES_READS = 4
"""Connections for look-ups and writes while every reader has one."""
_MEMBER_BYTES = 512
"""No member of a set is as long: a tail's key, its group and three numbers."""
_WORD_BYTES = 512
"""A number, a word, an error, and what frames an answer."""
_SAID_BYTES = 1 << 20
"""What a server says of itself: INFO, or the thousands of ranges that a large cluster has."""
_LEAST_RATE = 64 << 10
"""Bytes a second: values that come slower are given up."""


class Wire:
    """Pools of connections by server. Any thread; a call waits for the network.

    `_lock`, which is held over no I/O, guards `_pools`, `_left` (of servers that were left while
    something was under way there) and `_closed`. Nothing is tried twice here.
    """

    def __init__(self, address: RemoteAddress, options: RemoteOptions) -> None:
        given = options.password if options.password is not None else address.password
        self.password = given
        # Without TLS, two round trips less for a connection: a name in a server's list of clients.
        # With it, their answers take along the session tickets that a server sends unasked, which
        # the pool would take for answers that nobody read.
        tls = _tls(address) or {"driver_info": None}
        self._class: Any = BoundedTlsConnection if address.tls else BoundedConnection
        self._arguments: dict[str, Any] = {
            "username": address.user,
            "password": given,
            "db": address.database if address.kind == "redis" else 0,
            "redis_connect_func": self._begin,
            **_patience(options),
            **tls,
        }
        self._without_password = {**_patience(options), **tls}
        self._size = options.connections + _BESIDES_READS
        self._wait = options.read_seconds
        self._lock = threading.Lock()
        self._pools: dict[Host, redis.BlockingConnectionPool] = {}
        self._left: weakref.WeakSet[redis.BlockingConnectionPool] = weakref.WeakSet()
        self._closed = False

    def send(
        self, batches: Mapping[Host, Sequence[Command]], sink: Sink | None = None
    ) -> dict[Host, Answers]:
        """Send every server its commands, then collect the answers; those to commands that read one
        value each are received into `sink`, if there is one. Raises RemoteError when a server does
        not answer; what it answers, also an error, is returned."""
        failed: Exception
        seconds = self._wait
        if sink is not None:
            seconds += sum(map(_most_bytes, batches.values())) / _LEAST_RATE
        under_way: list[tuple[Host, redis.BlockingConnectionPool, Any]] = []
        answers: dict[Host, Answers] = {}
        try:
            # In one order everywhere: two threads that each hold what the other waits for would
            # both wait until they may no longer.
            for host in sorted(batches):
                pool = self._pool(host)
                connection = pool.get_connection()
                under_way.append((host, pool, connection))
                connection.answer_bytes = _most_bytes(batches[host])
                connection.answer_seconds = seconds
                connection.send_packed_command(connection.pack_commands(batches[host]))
            for host, _, connection in under_way:
                answers[host] = _answers(connection, len(batches[host]), sink)
            return answers
        except Exception as error:
            failed = error
        finally:
            for host, pool, connection in under_way:
                with suppress(Exception):
                    if host not in answers:
                        connection.disconnect()
                    pool.release(connection)
        if self._closed:
            # Whatever it is that a client raises whose socket is closed under it.
            raise RemoteError("lost", "the engine is closed")
        raise trouble(failed, self.password) from None

    def ask(self, host: Host, *command: Any, anonymously: bool = False) -> Any:
        """Return a server's answer to one command; raises RemoteError also for an error that it
        answers. `anonymously`: on a connection of its own, without the user and password."""
        if not anonymously:
            (answer,) = self.send({host: [command]})[host]
        else:
            answer = self._ask_anonymously(host, command)
        if isinstance(answer, Exception):
            raise trouble(answer, self.password)
        return answer

    def only(self, hosts: Sequence[Host]) -> None:
        """Forget servers that are not among these; what is under way there ends by itself."""
        with self._lock:
            gone = [self._pools.pop(host) for host in set(self._pools) - set(hosts)]
            self._left.update(gone)
        for pool in gone:
            pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close connections, those that threads wait on too; nothing is connected again."""
        with self._lock:
            self._closed = True
            pools = [*self._pools.values(), *self._left]
        for pool in pools:
            pool.disconnect()

    def _pool(self, host: Host) -> redis.BlockingConnectionPool:
        with self._lock:
            if self._closed:
                raise RemoteError("lost", "the engine is closed")
            pool = self._pools.get(host)
            if pool is None:
                pool = self._pools[host] = redis.BlockingConnectionPool(
                    self._size,
                    self._wait,
                    self._class,
                    host=host.name,
                    port=host.port,
                    **self._arguments,
                )
            return pool

    def _begin(self, connection: Any) -> None:
        """Greet a server; a thread that lost its connection to `close` gets no other."""
        if self._closed:
            raise failures.ConnectionError("the engine is closed")
        connection.on_connect()

    def _ask_anonymously(self, host: Host, command: Command) -> Any:
        connection = self._class(host=host.name, port=host.port, **self._without_password)
        try:
            connection.send_command(*command)
            return _answer(connection)
        except Exception as error:
            raise trouble(error, self.password) from None
        finally:
            connection.disconnect()


def _answers(connection: Any, count: int, sink: Sink | None) -> Answers:
    if sink is not None:
        return receive(connection, count, sink, PART_BYTES)
    return [_answer(connection) for _ in range(count)]


def _most_bytes(commands: Sequence[Command]) -> int:
    """Return how long the answers to commands are together, at most."""
    return sum(map(_most_bytes_of, commands))


def _most_bytes_of(command: Command) -> int:
    name, *arguments = command
    if name == "GETRANGE":
        return _WORD_BYTES + int(arguments[2]) + 1 - int(arguments[1])
    if name == "ZRANGE":
        return _WORD_BYTES + MEMBERS * _MEMBER_BYTES
    if name == "GET":
        return _WORD_BYTES + PART_BYTES
    if name in ("INFO", "CLUSTER"):
        return _SAID_BYTES
    return _WORD_BYTES


def _answer(connection: Any) -> Any:
    """Return the next answer; an error of the server's is returned, one of the connection raised,
    after which nothing more comes on it."""
    try:
        return connection.read_response()
    except failures.ResponseError as error:
        return error


def _patience(options: RemoteOptions) -> dict[str, Any]:
    return {
        "answer_bytes": _WORD_BYTES,
        "answer_seconds": options.read_seconds,
        "socket_timeout": options.read_seconds,
        "socket_connect_timeout": min(options.lookup_seconds, options.read_seconds),
        "socket_keepalive": True,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }


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
