"""Removed settings and values: a store that is given one opens, and warns once."""

import logging
from pathlib import Path

import pytest

from kit.storage import open_store
from omlx_cache.settings import CacheSettings, Machine
from omlx_cache.settings.removed import REMOVED


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


@pytest.mark.parametrize("name", sorted(REMOVED))
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
