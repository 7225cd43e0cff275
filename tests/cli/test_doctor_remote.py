"""`doctor --remote` says whether a store is reached, suits, and is worth it; it leaves nothing."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.examples import some
from kit.output import check_output
from kit.remote.certificates import Authority
from kit.remote.memory_engine import MemoryEngine
from kit.remote.redis_servers import RedisServer, redis_server
from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_daemon.doctor.remote import examining, server
from omlx_cache_daemon.doctor.remote.worth import MODELS, most_token_bytes, worth
from omlx_cache_storage.remote.address import parse_address
from omlx_cache_storage.remote.engine import RemoteOptions

from .conftest import Cli

PASSWORD = "correct-horse-battery"
SECRET = {
    "OMLX_CACHE_REMOTE_SECRET": "0123456789abcdef",
    # A busy machine is slow to look up, too.
    "OMLX_CACHE_REMOTE_LOOKUP_SECONDS": "60",
}
BRIEFLY = ("--seconds", "0.05")
GOOD = ("maxmemory 256mb", "maxmemory-policy volatile-lru")


@pytest.fixture
def good() -> Iterator[RedisServer]:
    with redis_server(*GOOD, password=PASSWORD) as running:
        yield running


def _found(out: str) -> list[dict[str, Any]]:
    document = json.loads(out)
    check_output("doctor-remote", document)
    found: list[dict[str, Any]] = document["findings"]
    return found


def test_a_good_store_is_measured_and_nothing_is_left_there(cli: Cli, good: RedisServer) -> None:
    ended = cli(
        *("doctor", "--remote", good.url, *BRIEFLY, "--format", "json"),
        OMLX_CACHE_REMOTE_PASSWORD=PASSWORD,
        **SECRET,
    )
    assert ended.code == 0
    assert _found(ended.out) == []
    told = json.loads(ended.out)
    assert told["server"].startswith(("Redis", "Valkey"))
    assert told["phase_pages"] == 512
    for name in ("median_trip_seconds", "lookup_seconds", "write_rate", "read_rate"):
        assert told[name] > 0
    limits = [one["tokens_per_second"] for one in told["worth"]]
    assert limits == sorted(limits, reverse=True)
    assert good.ask("DBSIZE") == 0
    assert good.calls("set") > 0


@pytest.mark.nightly
def test_it_is_said_in_words_with_the_table_on_paper(cli: Cli, good: RedisServer) -> None:
    ended = cli("doctor", "--remote", *BRIEFLY, OMLX_CACHE_REMOTE=good.url, **SECRET)
    assert ended.code == 1
    assert "does not let this machine in" in ended.out
    assert "file:PATH" in ended.out
    wrong = cli(
        *("doctor", "--remote", *BRIEFLY),
        OMLX_CACHE_REMOTE=good.url,
        OMLX_CACHE_REMOTE_PASSWORD="not-the-one",
        **SECRET,
    )
    assert wrong.code == 1
    assert "the password that is set is not the one of the user default" in wrong.out
    assert "file:PATH" not in wrong.out
    right = cli(
        *("doctor", "--remote", *BRIEFLY),
        OMLX_CACHE_REMOTE=good.url,
        OMLX_CACHE_REMOTE_PASSWORD=PASSWORD,
        **SECRET,
    )
    assert right.code == 0
    assert right.out.endswith("no trouble found\n")
    for words in ("round trip", "WORTH IT BELOW", "Llama 3.1 8B", "10 GbE", "Thunderbolt"):
        assert words in right.out


@pytest.mark.nightly
def test_no_password_is_in_any_output(cli: Cli, good: RedisServer) -> None:
    wrong = "not-this-one-but-long"
    for url in (f"redis://:{wrong}@{good.place}", f"redis://:{PASSWORD}@{good.place}"):
        for form in ("text", "json"):
            ended = cli("doctor", "--remote", url, *BRIEFLY, "--format", form)
            assert wrong not in ended.out + ended.err
            assert PASSWORD not in ended.out + ended.err
            assert "***" in ended.out
    ended = cli("doctor", "--remote", f"redis://:{wrong}@{good.place}/no-number")
    assert ended.code != 0
    assert wrong not in ended.out + ended.err


@pytest.mark.parametrize(
    ("settings", "ttl", "severity", "what"),
    some(
        [
            (("maxmemory 0",), "604800", "error", "no limit of memory"),
            (("maxmemory 64mb", "maxmemory-policy noeviction"), "604800", "warning", "noeviction"),
            (("maxmemory 64mb", "maxmemory-policy noeviction"), "0", "error", "noeviction"),
            (("maxmemory 64mb", "maxmemory-policy volatile-lru"), "0", "error", "time to live"),
            (
                ("maxmemory 64mb", "maxmemory-policy allkeys-random"),
                "60",
                "warning",
                "used longest",
            ),
            ((*GOOD, "appendonly yes"), "60", "note", "appendonly"),
            (("maxmemory 64mb", "maxmemory-policy allkeys-lru"), "0", "", ""),
        ],
        (("maxmemory 0",), "604800", "error", "no limit of memory"),
        (("maxmemory 64mb", "maxmemory-policy allkeys-lru"), "0", "", ""),
    ),
)
def test_a_server_that_does_not_suit_is_told_with_what_helps(
    cli: Cli, settings: tuple[str, ...], ttl: str, severity: str, what: str
) -> None:
    with redis_server(*settings) as running:
        ended = cli(
            *("doctor", "--remote", f"{running.url}?ttl={ttl}", *BRIEFLY, "--format", "json"),
            **SECRET,
        )
    found = _found(ended.out)
    if not what:
        assert found == []
        return
    (one,) = found
    assert one["severity"] == severity
    assert what in one["found"]
    assert one["remedy"]
    assert ended.code == (1 if severity == "error" else 0)


@pytest.mark.nightly
def test_a_user_that_may_only_read_is_told_and_is_no_trouble_where_nothing_is_written(
    cli: Cli,
) -> None:
    reader = f"user reader on >{PASSWORD} ~* +ping +get +getrange +zrange +info"
    with redis_server(*GOOD, users=(reader,)) as running:
        where = f"redis://reader@{running.place}"
        call = ("doctor", "--remote", where, *BRIEFLY, "--format", "json")
        known = {**SECRET, "OMLX_CACHE_REMOTE_PASSWORD": PASSWORD}
        ended = cli(*call, **known)
        reads = cli(*call, **known, OMLX_CACHE_REMOTE_WRITES="off")
    (found,) = _found(ended.out)
    assert (ended.code, found["severity"]) == (1, "error")
    assert "ACL SETUSER" in found["remedy"]
    assert PASSWORD not in ended.out
    (found,) = _found(reads.out)
    assert (reads.code, found["severity"]) == (0, "note")
    assert json.loads(reads.out)["lookup_seconds"] > 0


def test_a_dead_store_and_one_that_says_nothing_are_told_within_their_time(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        ended = cli(
            *("doctor", "--remote", f"redis://{place}", "--format", "json"),
            **{**SECRET, "OMLX_CACHE_REMOTE_LOOKUP_SECONDS": "0.05"},
        )
        (found,) = _found(ended.out)
        assert "does not answer in time" in found["found"]
    ended = cli("doctor", "--remote", f"redis://{place}", "--format", "json", **SECRET)
    (found,) = _found(ended.out)
    assert "is not reached" in found["found"]
    assert json.loads(ended.out)["reached"] is False
    assert (ended.code, json.loads(ended.out)["worth"]) == (1, [])


@pytest.mark.nightly
def test_a_directory_is_measured_too_and_left_as_it_was(cli: Cli, tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    call = ("doctor", "--remote", f"file://{share}", *BRIEFLY, "--format", "json")
    assert "shared only with a secret" in cli(*call).err
    ended = cli(*call, **SECRET)
    assert ended.code == 0
    assert json.loads(ended.out)["read_rate"] > 0
    (note,) = _found(ended.out)
    assert "read from this machine's memory" in note["found"]
    assert not [path for path in share.rglob("*") if path.is_file()]


@pytest.mark.nightly
def test_without_a_store_it_is_said_how_to_name_one(cli: Cli) -> None:
    ended = cli("doctor", "--remote")
    assert (ended.code, ended.out) == (1, "")
    assert "OMLX_CACHE_REMOTE" in ended.err
    assert cli("doctor", "--remote", "redis://h", "--fix").code == 2


def _examined(
    monkeypatch: pytest.MonkeyPatch, engine: MemoryEngine, url: str = "redis://127.0.0.1", **o: Any
) -> examining.Examined:
    monkeypatch.setattr(examining, "open_engine", lambda address, options: engine)
    monkeypatch.setattr(server, "facts_of", lambda engine: {})
    options = RemoteOptions(url="", architecture="a", **{"secret": b"s" * 16, **o})
    return examining.examine_remote(parse_address(url), options, writes=True, seconds=0.02)


def _texts(found: list[Finding]) -> str:
    return " / ".join(one.found for one in found)


def test_a_store_that_damages_or_loses_values_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Damaging(MemoryEngine):
        def read(self, parts: Any) -> Any:
            return [bytes(8) + bytes(value or b"")[8:] for value in super().read(parts)]

    engine = Damaging()
    done = _examined(monkeypatch, engine)
    assert "came back otherwise" in _texts(done.findings)
    assert engine.store.values == {}


def test_values_are_deleted_when_reading_fails_and_what_is_left_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = MemoryEngine()
    engine.fail["read"] = "lost"
    assert "breaks the connection" in _texts(_examined(monkeypatch, engine).findings)
    assert engine.store.values == {}
    engine = MemoryEngine()
    engine.fail["delete"] = "lost"
    assert "could not be deleted" in _texts(_examined(monkeypatch, engine).findings)


def test_a_look_up_that_takes_longer_than_a_request_waits_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = _examined(monkeypatch, MemoryEngine(), lookup_seconds=1e-9)
    assert "a look-up takes up to" in _texts(done.findings)


def test_a_way_that_others_can_listen_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(url: str, **options: Any) -> str:
        return _texts(_examined(monkeypatch, MemoryEngine(), url, **options).findings)

    monkeypatch.setattr(server, "certificate_days", lambda address, seconds: None)
    assert "not encrypted" in told("redis://cache.example.org")
    assert "not encrypted" in told("s3://bucket?endpoint=http://minio.example.org")
    for url in ("rediss://cache.example.org", "redis://localhost", "s3://bucket"):
        assert "not encrypted" not in told(url)
    assert "share no secret" in told("rediss://cache.example.org", secret=None)


def test_a_certificate_that_is_about_to_end_is_told() -> None:
    assert server.certificate(None) == server.certificate(90.0) == []
    (found,) = server.certificate(3.2)
    assert "in 3 d" in found.found


def test_a_token_s_worth_is_what_reading_it_takes() -> None:
    (llama,) = [model for model in MODELS if model.name == "Llama 3.1 8B"]
    assert llama.token_bytes == 128 * 1024
    told = worth(llama, 131_072_000.0, 0.0)
    assert told.tokens_per_second == pytest.approx(1000.0)
    slower = worth(llama, 131_072_000.0, 8.192)
    assert slower.token_seconds == pytest.approx(0.002)
    assert most_token_bytes(131_072_000.0, 0.0, 1000.0) == pytest.approx(llama.token_bytes)
    assert most_token_bytes(131_072_000.0, 8192.0, 1000.0) == 0.0


@pytest.mark.nightly
def test_a_server_with_tls_is_trusted_by_its_authority_only_and_its_last_days_are_told(
    cli: Cli, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    with redis_server(*GOOD, tls=authority.certificate("localhost"), ca=authority.ca) as running:
        call = ("doctor", "--remote", f"{running.url}?ca={authority.ca}", *BRIEFLY)
        trusted = cli(*call, "--format", "json", **SECRET)
        stranger = cli("doctor", "--remote", running.url, "--format", "json", **SECRET)
        plain = cli(
            *("doctor", "--remote", f"redis://{running.place}", "--format", "json"),
            **{**SECRET, "OMLX_CACHE_REMOTE_LOOKUP_SECONDS": "0.1"},
        )
    assert 0 < json.loads(trusted.out)["certificate_days"] <= 1
    (found,) = _found(trusted.out)
    assert (trusted.code, found["severity"]) == (0, "warning")
    assert "certificate ends" in found["found"]
    (found,) = _found(stranger.out)
    assert (stranger.code, found["severity"]) == (1, "error")
    assert "?ca=" in found["remedy"]
    (found,) = _found(plain.out)
    assert (plain.code, found["severity"]) == (1, "error")
