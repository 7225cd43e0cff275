"""The service sends the pages of a directory to other machines, for all of its processes."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.drive import Turn
from kit.remote.machines import Machine
from kit.remote.redis_servers import RedisServer, redis_server

from .conftest import Daemon

TOKENS = 321
DEADLINE = 60.0
FAMILY = "llama"
SECRET = "of these tests, and nobody else's"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def feeder(home: Path, server: RedisServer) -> Iterator[Daemon]:
    daemon = Daemon(home, OMLX_CACHE_REMOTE=server.url, OMLX_CACHE_REMOTE_SECRET=SECRET)
    try:
        daemon.wait_for("READY=1")
        yield daemon
    finally:
        daemon.close()


def _machine(directory: Path, server: RedisServer, **fields: str) -> Machine:
    return Machine(FAMILY, directory, server.url, remote_secret=SECRET, **fields)


def _stored(machine: Machine) -> int:
    """Have a server of the directory compute a prompt, and return how many pages that made."""
    with machine.store(remote_writes="service") as store:
        machine.ask(store, TOKENS)
        assert store.flush(DEADLINE)
        assert store.flush_remote(0.0)
        remote, cold = store.stats().remote, store.stats().cold
    assert remote is not None
    assert cold is not None
    assert remote.written_pages == 0
    return cold.pages


def _values(server: RedisServer) -> list[bytes]:
    return [name for name in server.ask("KEYS", "*") if not name.endswith(b"-tails")]


def _until(seen: Callable[[], bool], daemon: Daemon) -> None:
    deadline = time.monotonic() + DEADLINE
    while not seen():
        assert time.monotonic() < deadline, daemon.log.read_text()
        time.sleep(0.05)


def test_what_a_server_stored_another_machine_restores(
    feeder: Daemon, server: RedisServer, tmp_path: Path
) -> None:
    pages = _stored(_machine(feeder.cold_dir, server))
    _until(lambda: len(_values(server)) == pages, feeder)
    other = _machine(tmp_path / "b", server)
    with other.store() as store:
        turn: Turn = other.ask(store, TOKENS)
        assert store.stats().requests.restored_remote_tokens == turn.cached == TOKENS - 1
    assert other.is_right(turn, TOKENS)
    shown = feeder.run("stats", "--format", "json", "--socket", _socket(feeder)).stdout
    assert f'"written_pages": {pages}' in shown
    assert SECRET not in shown
    assert feeder.end() == 0


@pytest.mark.nightly
def test_one_that_was_killed_asks_and_sends_nothing_again(
    feeder: Daemon, server: RedisServer
) -> None:
    machine = _machine(feeder.cold_dir, server)
    pages = _stored(machine)
    _until(lambda: len(_values(server)) == pages, feeder)
    feeder.process.kill()
    feeder.process.wait(30)
    sent, asked = server.calls("set"), server.calls("getrange")
    feeder.process = feeder.start()
    feeder.wait_for("READY=1")
    _until(lambda: server.calls("getrange") >= asked + pages, feeder)
    assert feeder.end() == 0
    assert server.calls("set") == sent
    assert len(_values(server)) == pages


@pytest.mark.nightly
def test_a_store_that_is_not_there_holds_up_nothing_and_is_fed_when_it_comes(
    feeder: Daemon, server: RedisServer
) -> None:
    server.process.kill()
    pages = _stored(_machine(feeder.cold_dir, server))
    assert feeder.run("ps").returncode == 0
    server.start()
    _until(lambda: len(_values(server)) == pages, feeder)
    assert feeder.end() == 0


@pytest.mark.nightly
def test_with_writes_off_nothing_is_sent_until_a_reload_says_so(
    home: Path, server: RedisServer
) -> None:
    file = home / "omlx-cached.toml"
    secret = home / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    settings = f'remote = "{server.url}"\nremote_secret = "file:{secret}"\n'
    file.write_text(settings + 'remote_writes = "off"\n')
    daemon = Daemon(home, "--config", str(file))
    try:
        daemon.wait_for("READY=1")
        pages = _stored(_machine(daemon.cold_dir, server))
        assert _values(server) == []
        file.write_text(settings)
        daemon.process.send_signal(1)
        daemon.wait_for("READY=1")
        _until(lambda: len(_values(server)) == pages, daemon)
        assert daemon.end() == 0
    finally:
        daemon.close()


@pytest.mark.nightly
def test_what_was_there_while_the_secret_was_not_is_sent_when_it_comes(
    home: Path, server: RedisServer, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    file = home / "omlx-cached.toml"
    file.write_text(f'remote = "{server.url}"\nremote_secret = "file:{secret}"\n')
    pages = _stored(_machine(home / "cold", server))
    daemon = Daemon(home, "--config", str(file))
    try:
        daemon.wait_for("READY=1")
        _until(lambda: "pages are not sent to other machines" in daemon.log.read_text(), daemon)
        assert _values(server) == []
        secret.touch(mode=0o600)
        secret.write_text(SECRET)
        _until(lambda: len(_values(server)) == pages, daemon)
        assert daemon.end() == 0
    finally:
        daemon.close()


def test_checking_shows_no_secret_and_takes_none_from_flags_and_keys(
    home: Path, server: RedisServer
) -> None:
    daemon = Daemon(home)
    try:
        daemon.wait_for("READY=1")
        daemon.environment |= {
            "OMLX_CACHE_REMOTE": "redis://user:a-password@nowhere:1",
            "OMLX_CACHE_REMOTE_SECRET": SECRET,
        }
        service = "omlx_cache_daemon.service"
        checked = daemon.run("--check-config", module=service)
        assert checked.returncode == 0, checked.stderr
        assert "redis://user:***@nowhere:1" in checked.stdout
        assert "(hidden)" in checked.stdout
        refused = daemon.run("--remote", "redis://:a-password@nowhere:1", module=service)
        assert refused.returncode == 78
        (home / "bad.toml").write_text(f'remote_secret = "{SECRET}"\n')
        named = daemon.run("--config", str(home / "bad.toml"), module=service)
        assert named.returncode == 78
        assert "remote_secret: not here" in named.stderr
        for one in (checked, refused, named):
            assert SECRET not in one.stdout + one.stderr
            assert "a-password" not in one.stdout + one.stderr
    finally:
        daemon.close()


def _socket(daemon: Daemon) -> str:
    (path,) = (daemon.home / "run").rglob("service-*.sock")
    return str(path)
