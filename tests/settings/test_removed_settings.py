"""Removed settings and values: a store that is given one opens, and warns once."""

import logging
from pathlib import Path

import pytest

from kit.storage import open_store
from omlx_cache.settings import CacheSettings, Machine
from omlx_cache.settings.names import REMOVED

SECRET = "a secret of more than 16 characters"
TAKEN = {"remote_password_file", "remote_secret_file"}
"""Those that mean something else whatever they are."""


@pytest.mark.parametrize("given", ["back", "Second_Touch"])
@pytest.mark.parametrize("form", ["argument", "variable"])
def test_a_removed_value_is_replaced_by_its_successor(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, given: str, form: str
) -> None:
    known = {"machine": machine, "cold_dir": "/srv/kv", "cold_bytes": "1GiB"}
    if form == "argument":
        settings, name = CacheSettings(**known, write_policy=given), "write_policy"
    else:
        name = "OMLX_CACHE_WRITE_POLICY"
        monkeypatch.setenv(name, given)
        settings = CacheSettings(**known)
    assert settings.write_policy == "lazy"
    (note,) = settings.warnings()
    assert note.startswith(f"{name}: {given.lower()} is lazy now: ")
    assert note in settings.notes()
    assert not CacheSettings(**known, write_policy="lazy").warnings()


def test_a_removed_setting_becomes_what_takes_its_place(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"machine": machine, "cold_dir": "/srv/kv", "cold_bytes": "1GiB"}
    settings = CacheSettings(**known, queue_full="Wait", commit_wait_seconds=1)
    (note,) = settings.warnings()
    assert note.startswith("queue_full is commit_wait_seconds=86400 now: ")
    assert settings.commit_wait_seconds == 86400
    assert settings.sources()["commit_wait_seconds"].origin == "argument queue_full"
    monkeypatch.setenv("OMLX_CACHE_QUEUE_FULL", "drop")
    dropping = CacheSettings(**known)
    assert dropping.commit_wait_seconds == 2
    assert dropping.warnings()[0].startswith("OMLX_CACHE_QUEUE_FULL has no effect any more: ")


@pytest.mark.parametrize("form", ["argument", "variable"])
def test_where_the_store_s_secrets_lie_is_said_by_the_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    given = {"remote": "redis://nas", "remote_secret_file": file, "remote_password_file": file}
    if form == "variable":
        for name, value in given.items():
            monkeypatch.setenv(f"OMLX_CACHE_{name.upper()}", str(value))
        given = {}
    settings = CacheSettings(cold_dir=tmp_path, **given)
    assert settings.remote_secret == settings.remote_password == f"file:{file}"
    assert all(" now: " in note and str(file) not in note for note in settings.removals())
    file.chmod(0o600)
    options = settings.remote_options("cpu")
    assert (options.secret, options.password) == (SECRET.encode(), SECRET)
    blank = CacheSettings(remote="redis://nas", remote_secret=f" file:{file}\n")
    assert blank.remote_options("cpu").secret == SECRET.encode()
    said = CacheSettings(cold_dir=tmp_path, **{**given, "remote_secret": SECRET[::-1]})
    assert said.remote_options("cpu").secret == SECRET[::-1].encode()


@pytest.mark.parametrize(
    ("url", "prefix", "ttl", "shown"),
    [
        ("redis://me:pass@nas", "/lab/", "60", "redis://me:***@nas:6379?prefix=lab&ttl=60"),
        ("redis://nas?prefix=own", "lab", 0, "redis://nas:6379?prefix=own&ttl=0"),
        ("s3://bucket?region=eu", "", 60, "s3://bucket?prefix="),
        ("file:///mnt/share", "lab/kv", 60, "file:///mnt/share?prefix=lab/kv"),
        ("off", "lab", 60, "off"),
    ],
)
def test_the_remote_store_s_names_and_times_are_said_by_its_url(
    monkeypatch: pytest.MonkeyPatch, url: str, prefix: str, ttl: object, shown: str
) -> None:
    monkeypatch.setenv("OMLX_CACHE_REMOTE", url)
    monkeypatch.setenv("OMLX_CACHE_REMOTE_PREFIX", prefix)
    settings = CacheSettings(remote_ttl_seconds=ttl)
    assert settings.sources()["remote"].rendered == shown
    assert settings.sources()["remote"].origin == "environment OMLX_CACHE_REMOTE"
    assert len(settings.removals()) == 2
    assert "pass" not in str(settings.removals())


@pytest.mark.parametrize("name", sorted(REMOVED.keys() - TAKEN))
def test_a_removed_setting_has_no_effect_and_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    known = {"machine": machine, "cold_dir": "/srv/kv", "cold_bytes": "1GiB"}
    plain = CacheSettings(**known)
    given = CacheSettings(**known, **{name: "anything"})
    assert given.warnings() == [f"{name} has no effect any more: {REMOVED[name]}"]
    assert given.sources().keys() == plain.sources().keys()
    variable = f"OMLX_CACHE_{name.upper()}"
    monkeypatch.setenv(variable, "anything")
    assert CacheSettings(**known).warnings()[0].startswith(f"{variable} has no effect any more: ")
    assert given.model_dump() == plain.model_dump()


def test_a_store_warns_once_of_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omlx_cache"), open_store(tmp_path, write_policy="back"):
        pass
    (record,) = caplog.records
    assert "write_policy: back is lazy now" in record.getMessage()
