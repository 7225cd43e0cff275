"""What one machine has computed another one restores, bit for bit; and keeps on its own disk."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from kit.drive import random_tokens, request
from kit.examples import some
from kit.remote.machines import BLOCK, Machine, on_another_machine
from kit.remote.places import STORES
from kit.remote.redis_servers import RedisServer
from omlx_cache import PrefixCache

TOKENS = 321
pytestmark = pytest.mark.usefixtures("forks")
FAMILIES = {"dense": "llama", "windowed": "gemma3_text", "hybrid": "qwen3_next"}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        *(("redis", family) for family in FAMILIES.values()),
        *((each, "qwen3_next") for each in STORES if each != "redis"),
    ],
)
def test_what_one_machine_computed_another_restores_bit_for_bit(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_CACHE_REMOTE_SECRET", "a secret that both machines have")
    with STORES[name](tmp_path) as url:
        assert on_another_machine(url, tmp_path / "a", family, TOKENS) == 0
        machine = Machine(family, tmp_path / "b", url)
        with machine.store() as store:
            turn = machine.ask(store, TOKENS, new=3)
            requests, remote = store.stats().requests, store.stats().remote
    assert turn.cached == TOKENS - 1
    assert machine.is_right(turn, TOKENS)
    assert requests.restored_remote_tokens == TOKENS - 1
    assert requests.restored_hot_tokens == requests.restored_cold_tokens == 0
    assert (remote.state, remote.lost_pages, remote.bad_pages, remote.errors) == ("ok", 0, 0, {})


@pytest.mark.parametrize("family", some([*FAMILIES.values()], "qwen3_next"))
@pytest.mark.parametrize("hot_bytes", ["256MiB", "0"], ids=["with memory", "without memory"])
def test_what_came_from_afar_is_on_the_own_disk(
    hot_bytes: str, family: str, server: RedisServer, tmp_path: Path
) -> None:
    on_another_machine(server.url, tmp_path / "a", family, TOKENS)
    machine = Machine(family, tmp_path / "b", server.url, hot_bytes=hot_bytes)
    with machine.store() as store:
        assert machine.ask(store, TOKENS).cached == TOKENS - 1
        assert store.flush(30)
    server.process.kill()
    with machine.store() as store:
        turn = machine.ask(store, TOKENS)
        assert store.stats().requests.restored_cold_tokens == turn.cached
    assert turn.cached >= TOKENS // BLOCK * BLOCK
    assert machine.is_right(turn, TOKENS)


@pytest.mark.parametrize("family", some([*FAMILIES.values()], "llama"))
def test_memory_disk_and_other_machines_mix_in_one_restore(
    family: str, server: RedisServer, tmp_path: Path
) -> None:
    machine = Machine(family, tmp_path / "b", "off")
    tokens = random_tokens(TOKENS, 1)
    with machine.store() as store:
        request(machine.model, PrefixCache(machine.model, store), tokens[: 3 * BLOCK], step=BLOCK)
        assert store.flush(30)
    on_another_machine(server.url, tmp_path / "a", family, TOKENS)
    with machine.store(remote=server.url) as store:
        # Of the first blocks the disk has all and memory one; of the others nobody here has any.
        prefix = PrefixCache(machine.model, store)
        prefix.prefetch(tokens[: BLOCK + 1]).wait(30)
        turn = machine.ask(store, TOKENS)
        requests = store.stats().requests
    assert turn.cached == TOKENS - 1
    assert machine.is_right(turn, TOKENS)
    assert requests.restored_remote_tokens > 0
    if family == "llama":
        assert requests.restored_hot_tokens > 0
        assert requests.restored_cold_tokens > 0
        assert requests.restored_remote_tokens < TOKENS - 3 * BLOCK + 1


def test_without_a_disk_machines_share_all_the_same(server: RedisServer, tmp_path: Path) -> None:
    one = Machine("llama", tmp_path / "a", server.url, hot_cache_only=True)
    with one.store() as store:
        one.ask(store, TOKENS)
        assert store.uploads.flush(30)
    two = Machine("llama", tmp_path / "b", server.url, hot_cache_only=True)
    with two.store() as store:
        turn = two.ask(store, TOKENS)
        assert store.stats().requests.restored_remote_tokens == turn.cached == TOKENS - 1
        # Now it is in this memory.
        assert two.ask(store, TOKENS).cached == TOKENS - 1
        assert store.stats().requests.restored_hot_tokens == TOKENS - 1
    assert two.is_right(turn, TOKENS)


def test_machines_of_another_salt_model_or_secret_share_nothing(
    server: RedisServer, tmp_path: Path
) -> None:
    on_another_machine(server.url, tmp_path / "a", "llama", TOKENS)
    others = {
        "salt": Machine("llama", tmp_path / "b", server.url),
        "model": Machine("qwen3", tmp_path / "c", server.url),
        "secret": Machine("llama", tmp_path / "d", server.url, remote_secret="x" * 16),
        "prefix": Machine("llama", tmp_path / "e", f"{server.url}?prefix=other"),
        "architecture": Machine("llama", tmp_path / "f", server.url, remote_architecture="M9"),
    }
    for name, machine in others.items():
        options = {"salt": "tenant"} if name == "salt" else {}
        with machine.store() as store:
            assert machine.ask(store, TOKENS, **options).cached == 0, name


def test_a_conversation_of_ten_times_the_memory_comes_from_afar(
    server: RedisServer, tmp_path: Path
) -> None:
    tokens = 2048
    on_another_machine(server.url, tmp_path / "a", "llama", tokens)
    machine = Machine("llama", tmp_path / "b", server.url, hot_bytes="256KiB", queue_bytes="64KiB")
    with machine.store() as store:
        mx.reset_peak_memory()
        turn = machine.ask(store, tokens)
        usage = store.stats()
    assert turn.cached == tokens - 1
    assert machine.is_right(turn, tokens)
    assert usage.hot.peak_bytes <= 256 * 1024
    assert usage.remote.read_bytes > 5 * usage.hot.limit_bytes


SETTINGS: dict[str, dict[str, Any]] = {
    "encoded in memory": {"codec": "affine8", "min_quantize_tokens": 0},
    "encoded by turbo": {"codec": "turbo4", "min_quantize_tokens": 0},
    "encoded on the disk": {"cold_codec": "affine4", "min_quantize_tokens": 0},
    "packed on the disk": {"cold_codec": "zstd"},
    "written late": {"write_policy": "lazy"},
    "what was reused": {"remote_writes": "reused"},
    "what is shared": {"remote_writes": "shared"},
}
ALIKE_IN_EVERY_RUN = (
    "encoded in memory", "encoded on the disk", "packed on the disk",
    "written late", "what is shared",
)  # fmt: skip


@pytest.mark.parametrize("name", some([*SETTINGS], *ALIKE_IN_EVERY_RUN))
def test_machines_share_under_any_settings_that_are_alike(
    name: str, server: RedisServer, tmp_path: Path
) -> None:
    one = Machine("qwen3_next", tmp_path / "a", server.url, **SETTINGS[name])
    with one.store() as store:
        first = one.ask(store, TOKENS, new=2)
        second = one.ask(store, TOKENS)
        assert store.flush(30)
        assert store.uploads.flush(30)
    two = Machine("qwen3_next", tmp_path / "b", server.url, **SETTINGS[name])
    with two.store() as store:
        turn = two.ask(store, TOKENS)
        assert store.stats().requests.restored_remote_tokens == turn.cached == TOKENS - 1
    if "encoded" not in name:
        assert two.is_right(turn, TOKENS)
    elif name != "encoded on the disk":
        # Whoever restored it where it was computed has the same bits.
        assert turn.digest == second.digest
    assert first.cached == 0
