"""Remote stores of each kind, run for a test: what to put there is the machines'."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from .redis_groups import redis_cluster, redis_sentinels
from .redis_servers import redis_server
from .s3_server import s3_server


def _at(run: Callable[[], AbstractContextManager[Any]]) -> Callable[[Path], Any]:
    @contextmanager
    def at(directory: Path) -> Iterator[str]:
        with run() as server:
            yield server.url

    return at


@contextmanager
def _bucket(directory: Path) -> Iterator[str]:
    with s3_server() as server:
        yield server.url(server.bucket(), "a/prefix")


@contextmanager
def _directory(directory: Path) -> Iterator[str]:
    yield f"file://{directory / 'share'}"


STORES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "redis": _at(redis_server),
    "cluster": _at(redis_cluster),
    "sentinels": _at(redis_sentinels),
    "bucket": _bucket,
    "directory": _directory,
}
"""By kind: gives the URL of a store; `directory` is where it may keep files."""
