"""Remote stores of each kind, run for a test: what to put there is the machines'."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from .redis_groups import redis_cluster, redis_sentinels
from .redis_servers import redis_server
from .s3_server import s3_server


@contextmanager
def _redis(directory: Path) -> Iterator[str]:
    with redis_server() as server:
        yield server.url


@contextmanager
def _cluster(directory: Path) -> Iterator[str]:
    with redis_cluster() as cluster:
        yield cluster.url


@contextmanager
def _sentinels(directory: Path) -> Iterator[str]:
    with redis_sentinels() as sentinels:
        yield sentinels.url


@contextmanager
def _bucket(directory: Path) -> Iterator[str]:
    with s3_server() as server:
        yield server.url(server.bucket(), "a/prefix")


@contextmanager
def _directory(directory: Path) -> Iterator[str]:
    yield f"file://{directory / 'share'}"


STORES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "redis": _redis,
    "cluster": _cluster,
    "sentinels": _sentinels,
    "bucket": _bucket,
    "directory": _directory,
}
"""By kind: gives the URL of a store; `directory` is where it may keep files."""
