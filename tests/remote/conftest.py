"""A real store that machines share."""

from collections.abc import Iterator

import pytest

from kit.remote.redis_servers import RedisServer, redis_server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server
