"""The service sends the pages of a directory to other machines, for all of its processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.drive import FedTurn
from kit.remote.machines import Machine
from kit.remote.processes import until
from kit.remote.redis_servers import RedisServer, redis_server
from omlx_cache_daemon.service.main import main

from .conftest import Daemon, started

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
    """A service whose file says the store, with the secret in another file."""
    file, secret = home / "omlx-cached.toml", home / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET)
    file.write_text(_settings(home, server))
    with started(home, "--config", str(file)) as daemon:
        yield daemon
        assert daemon.end() == 0


def _settings(home: Path, server: RedisServer) -> str:
    return f'remote = "{server.url}"\nremote_secret = "file:{home / "secret"}"\n'


def _machine(directory: Path, server: RedisServer, **fields: str) -> Machine:
    return Machine(FAMILY, directory, server.url, remote_secret=SECRET, **fields)


def _stored(machine: Machine) -> int:
    """Have a server of the directory compute a prompt, and return how many pages that made."""
    with machine.store(remote_writes="service") as store:
        machine.ask(store, TOKENS)
        assert store.flush(DEADLINE)
        assert store.uploads is None
        remote, cold = store.stats().remote, store.stats().cold
    assert remote.written_pages == 0
    return cold.pages


def _values(server: RedisServer) -> list[bytes]:
    return [name for name in server.ask("KEYS", "*") if not name.endswith(b"-tails")]


def test_what_a_server_stored_another_machine_restores(
    feeder: Daemon, server: RedisServer, tmp_path: Path
) -> None:
    pages = _stored(_machine(feeder.cold_dir, server))
    until(lambda: len(_values(server)) == pages)
    other = _machine(tmp_path / "b", server)
    with other.store() as store:
        turn: FedTurn = other.ask(store, TOKENS)
        assert store.stats().requests.restored_remote_tokens == turn.cached == TOKENS - 1
    assert other.is_right(turn, TOKENS)
    shown = feeder.run("stats", "--format", "json", "--socket", feeder.socket).stdout
    assert f'"written_pages": {pages}' in shown
    assert SECRET not in shown


@pytest.mark.nightly
def test_one_that_was_killed_asks_and_sends_nothing_again(
    feeder: Daemon, server: RedisServer
) -> None:
    pages = _stored(_machine(feeder.cold_dir, server))
    until(lambda: len(_values(server)) == pages)
    feeder.kill()
    sent, asked = server.calls("set"), server.calls("getrange")
    feeder.start()
    until(lambda: server.calls("getrange") >= asked + pages)
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
    until(lambda: len(_values(server)) == pages)


@pytest.mark.nightly
def test_what_was_there_while_nothing_could_be_sent_is_sent_then(
    feeder: Daemon, server: RedisServer
) -> None:
    file, secret = feeder.home / "omlx-cached.toml", feeder.home / "secret"
    secret.unlink()
    file.write_text(_settings(feeder.home, server) + "remote_encrypt = true\n")
    feeder.reload()
    pages = _stored(_machine(feeder.cold_dir, server))
    until(lambda: "pages are not sent to other machines" in feeder.log.read_text())
    assert _values(server) == []
    secret.touch(mode=0o600)
    secret.write_text(SECRET)
    file.write_text(_settings(feeder.home, server))
    feeder.reload()
    until(lambda: len(_values(server)) == pages)


def test_checking_shows_no_secret_and_takes_none_from_flags_and_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OMLX_CACHE_REMOTE", "redis://user:a-password@nowhere:1")
    monkeypatch.setenv("OMLX_CACHE_REMOTE_SECRET", SECRET)
    bad = tmp_path / "bad.toml"
    bad.write_text(f'remote_secret = "{SECRET}"\n')
    for flags, code, said in (
        ([], 0, "redis://user:***@nowhere:1"),
        (["--remote", "redis://:a-password@nowhere:1"], 2, "on the command line has no password"),
        (["--config", str(bad)], 78, "remote_secret: not here"),
    ):
        assert main(["--check-config", *flags]) == code
        shown = "".join(capsys.readouterr())
        assert said in shown
        assert SECRET not in shown
        assert "a-password" not in shown
