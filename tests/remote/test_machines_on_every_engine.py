"""Two machines share what one computed, whatever store lies between them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.remote.engines import PATIENT_SECONDS
from kit.remote.machines import Machine, on_another_machine
from kit.remote.redis_groups import redis_cluster, redis_sentinels
from kit.remote.s3_server import s3_server

TOKENS = 321
SECRET = "a secret that both machines have"


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
        yield server.url(server.bucket())


@contextmanager
def _directory(directory: Path) -> Iterator[str]:
    yield f"file://{directory / 'share'}"


STORES = {"cluster": _cluster, "sentinels": _sentinels, "bucket": _bucket, "directory": _directory}


@pytest.mark.parametrize("name", STORES)
def test_what_one_machine_computed_another_restores_bit_for_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_REMOTE_SECRET", SECRET)
    monkeypatch.setenv("OMLX_CACHE_REMOTE_LOOKUP_SECONDS", str(PATIENT_SECONDS))
    with STORES[name](tmp_path) as url:
        assert on_another_machine(url, tmp_path / "a", "qwen3_next", TOKENS) == 0
        machine = Machine("qwen3_next", tmp_path / "b", url)
        with machine.store() as store:
            turn = machine.ask(store, TOKENS, new=2)
            usage = store.stats()
    assert (usage.remote.state, usage.remote.errors) == ("ok", {})
    assert usage.requests.restored_remote_tokens == turn.cached == TOKENS - 1
    assert machine.is_right(turn, TOKENS)
