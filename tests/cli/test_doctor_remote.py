"""`doctor --remote` examines and measures a store, leaves nothing there, and tells no password."""

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
from omlx_cache_daemon.doctor import remote
from omlx_cache_daemon.doctor.link import TOKEN_BYTES, Link, worth
from omlx_cache_storage.remote.address import parse_address
from omlx_cache_storage.remote.engine import RemoteOptions

from .conftest import Cli

PASSWORD = "correct-horse-battery"
GOOD = ("maxmemory 256mb", "maxmemory-policy volatile-lru")
Doctor = Any


@pytest.fixture
def good() -> Iterator[RedisServer]:
    with redis_server(*GOOD, password=PASSWORD) as running:
        yield running


@pytest.fixture
def doctor(cli: Cli) -> Doctor:
    """Examines a store; returns the exit code, the findings and all that was told."""

    def run(url: str, **variables: str) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
        known = {
            "SECRET": "0123456789abcdef",
            # A busy machine is slow to look up, too.
            "LOOKUP_SECONDS": "60",
            **variables,
        }
        named = {f"OMLX_CACHE_REMOTE_{name}": value for name, value in known.items()}
        ended = cli("doctor", "--remote", url, "--seconds", "0.05", "--format", "json", **named)
        assert PASSWORD not in ended.out + ended.err
        told = json.loads(ended.out)
        check_output("doctor-remote", told)
        return ended.code, told["findings"], told

    return run


def test_a_good_store_is_measured_and_nothing_is_left_there(
    doctor: Doctor, good: RedisServer
) -> None:
    code, found, told = doctor(good.url, PASSWORD=PASSWORD)
    assert (code, found) == (0, [])
    assert told["server"].startswith(("Redis", "Valkey"))
    assert told["phase_pages"] == 512
    for name in ("median_trip_seconds", "lookup_seconds", "write_rate", "read_rate"):
        assert told[name] > 0
    limits = [one["tokens_per_second"] for one in told["worth"]]
    assert limits == sorted(limits, reverse=True)
    assert good.ask("DBSIZE") == 0
    assert good.calls("set") > 0


@pytest.mark.parametrize(
    ("settings", "ttl", "severity", "what"),
    some(
        [
            (("maxmemory 0",), "604800", "error", "no limit of memory"),
            (("maxmemory 64mb", "maxmemory-policy noeviction"), "604800", "warning", "noeviction"),
            (("maxmemory 64mb", "maxmemory-policy noeviction"), "0", "error", "noeviction"),
            (("maxmemory 64mb", "maxmemory-policy volatile-lru"), "0", "error", "time to live"),
            (("maxmemory 64mb", "maxmemory-policy allkeys-random"), "60", "warning", "longest ago"),
            ((*GOOD, "appendonly yes"), "60", "note", "appendonly"),
            (("maxmemory 64mb", "maxmemory-policy allkeys-lru"), "0", "", ""),
        ],
        (("maxmemory 0",), "604800", "error", "no limit of memory"),
        (("maxmemory 64mb", "maxmemory-policy allkeys-lru"), "0", "", ""),
    ),
)
def test_a_server_that_does_not_suit_is_told_with_what_helps(
    doctor: Doctor, settings: tuple[str, ...], ttl: str, severity: str, what: str
) -> None:
    with redis_server(*settings) as running:
        code, found, _ = doctor(f"{running.url}?ttl={ttl}")
    assert [one["severity"] for one in found] == [severity] * bool(what)
    assert all(what in one["found"] and one["remedy"] for one in found)
    assert code == (1 if severity == "error" else 0)


@pytest.mark.nightly
def test_who_is_not_let_in_is_told_what_helps(doctor: Doctor, good: RedisServer, cli: Cli) -> None:
    for password, remedy in (("", "file:PATH"), ("not-the-one", "not the one of the user default")):
        code, (found,), _ = doctor(good.url, **({"PASSWORD": password} if password else {}))
        assert (code, remedy in found["remedy"]) == (1, True)
    code, _, told = doctor(f"redis://:{PASSWORD}@{good.place}")
    assert (code, "***" in told["where"]) == (0, True)
    reader = f"user reader on >{PASSWORD} ~* +ping +get +getrange +zrange +info"
    with redis_server(*GOOD, users=(reader,)) as running:
        for writes, code, severity in (("all", 1, "error"), ("off", 0, "note")):
            where = f"redis://reader@{running.place}"
            done, (found,), told = doctor(where, PASSWORD=PASSWORD, WRITES=writes)
            assert (done, found["severity"]) == (code, severity)
            assert "ACL SETUSER" in found["remedy"]
            assert told["lookup_seconds"] > 0
    cli("doctor", "--remote").assert_refused(1, "OMLX_CACHE_REMOTE")
    assert cli("doctor", "--remote", "redis://h", "--fix").code == 2


def test_a_dead_store_and_one_that_says_nothing_are_told_within_their_time(doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        _, (found,), _ = doctor(place, LOOKUP_SECONDS="0.05")
        assert "does not answer in time" in found["found"]
    code, (found,), told = doctor(place)
    assert "is not reached" in found["found"]
    assert (code, told["reached"], told["worth"]) == (1, False, [])


def test_a_directory_that_is_not_there_has_no_firewall(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "missing" / "share", tmp_path / "file"):
        code, (found,), _ = doctor(f"file://{place}")
        assert (code, found["severity"]) == (1, "error")
        assert found["remedy"].endswith(f"ls -ld {place}")
        assert "firewall" not in found["remedy"]


@pytest.mark.nightly
def test_a_directory_is_measured_too_and_left_as_it_was(
    doctor: Doctor, cli: Cli, tmp_path: Path
) -> None:
    share = tmp_path / "share"
    share.mkdir()
    assert "shared only with a secret" in cli("doctor", "--remote", f"file://{share}").err
    code, (note,), told = doctor(f"file://{share}")
    assert (code, told["read_rate"] > 0) == (0, True)
    assert "read from this machine's memory" in note["found"]
    assert not [path for path in share.rglob("*") if path.is_file()]


@pytest.mark.nightly
def test_a_server_with_tls_is_trusted_by_its_authority_only_and_its_last_days_are_told(
    doctor: Doctor, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    with redis_server(*GOOD, tls=authority.certificate("localhost"), ca=authority.ca) as running:
        code, (found,), told = doctor(f"{running.url}?ca={authority.ca}")
        assert (code, found["severity"], told["certificate_days"] <= 1) == (0, "warning", True)
        assert "certificate ends" in found["found"]
        code, (found,), _ = doctor(running.url)
        assert (code, "?ca=" in found["remedy"]) == (1, True)
        assert doctor(f"redis://{running.place}", LOOKUP_SECONDS="0.1")[0] == 1


class _Damaging(MemoryEngine):
    def read(self, parts: Any) -> Any:
        return [bytes(8) + bytes(value or b"")[8:] for value in super().read(parts)]


@pytest.mark.parametrize(
    ("engine", "fails", "url", "options", "told"),
    [
        (_Damaging, "", "redis://localhost", {}, "came back otherwise"),
        (MemoryEngine, "read", "redis://localhost", {}, "breaks the connection"),
        (MemoryEngine, "delete", "redis://localhost", {}, "could not be deleted"),
        (MemoryEngine, "", "redis://localhost", {"lookup_seconds": 1e-9}, "a lookup takes up to"),
        (MemoryEngine, "", "redis://cache.example.org", {}, "not encrypted"),
        (MemoryEngine, "", "s3://bucket?endpoint=http://minio.example.org", {}, "not encrypted"),
        (MemoryEngine, "", "rediss://cache.example.org", {"secret": None}, "share no secret"),
        (MemoryEngine, "", "rediss://cache.example.org", {}, ""),
        (MemoryEngine, "", "redis://localhost", {}, ""),
    ],
)
def test_what_is_not_as_it_should_be_is_told(
    monkeypatch: pytest.MonkeyPatch,
    engine: type[MemoryEngine],
    fails: str,
    url: str,
    options: dict[str, Any],
    told: str,
) -> None:
    opened = engine()
    opened.info = lambda section: {}  # type: ignore[attr-defined]
    opened.fail |= {fails: "lost"} if fails else {}
    monkeypatch.setattr(remote, "open_engine", lambda address, options: opened)
    monkeypatch.setattr(remote, "certificate_days", lambda address, seconds: None)
    known = RemoteOptions(url="", architecture="a", **{"secret": b"s" * 16, **options})
    link = Link(url, {})
    found = list(remote.examine_remote(parse_address(url), known, link, writes=True, seconds=0.02))
    texts = [one.found for one in found if not one.found.endswith("each is a request")]
    # On a busy machine eight readers may bring less than one.
    texts = [text for text in texts if "connections bring less than one" not in text]
    assert (told in texts[0]) if told else (texts == [])
    assert fails == "delete" or opened.store.values == {}


def test_a_token_s_worth_is_what_reading_it_takes() -> None:
    nbytes = TOKEN_BYTES["Llama 3.1 8B"]
    assert worth("", nbytes, 131_072_000.0, 0.0).tokens_per_second == pytest.approx(1000.0)
    assert worth("", nbytes, 131_072_000.0, 8.192).token_seconds == pytest.approx(0.002)
