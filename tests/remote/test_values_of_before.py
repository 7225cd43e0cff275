"""Versions share a store: values, names and sets are byte for byte those of the version before.

`values/before.json` is what version 7f87c96 wrote: names, each part compressed, and sets.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kit.remote import MemoryEngine, MemoryStore
from kit.remote.asking import inquiry
from kit.storage import Story, read_cold
from omlx_cache_storage.page import Page
from omlx_cache_storage.remote import envelope
from omlx_cache_storage.remote.engine import RemoteOptions
from omlx_cache_storage.remote.tier import RemoteTier

BEFORE = json.loads((Path(__file__).parent / "values" / "before.json").read_text())
SECRET = b"a secret that both versions know"
MODES: dict[str, Mapping[str, Any]] = {
    "open": {},
    "signed": {"secret": SECRET},
    "sealed": {"secret": SECRET, "encrypts": True},
}
PART_BYTES = 16_800
"""Small enough that each page has two parts."""
STORY = Story("golden", nbytes=512)
PAGES = (*STORY.pages(1, 2), STORY.page(3, tail=5))
PATIENT = {"lookup_seconds": 60.0, "read_seconds": 60.0}


def _parts(mode: str) -> dict[str, list[bytes]]:
    values: dict[str, list[str]] = BEFORE[mode]["values"]
    return {
        name: [zlib.decompress(base64.b64decode(part)) for part in parts]
        for name, parts in values.items()
    }


def _name(page: Page) -> str:
    (name,) = (name for name in BEFORE["open"]["values"] if page.meta.key.hex() in name)
    return str(name)


def _machine(store: MemoryStore, mode: str) -> RemoteTier:
    options = RemoteOptions("", "cpu", **PATIENT, **MODES[mode])
    engine = MemoryEngine(store, part_bytes=PART_BYTES)
    return RemoteTier(engine, options, engine_name="memory", where="memory")


def _finds_all(tier: RemoteTier) -> None:
    assert tier.ask(inquiry(STORY, 2, length=PAGES[-1].meta.position)).news
    for page in PAGES:
        assert tier.meta(page.meta.id) == page.meta
        assert read_cold(tier, page.meta.id) == page.payload


@pytest.mark.parametrize("mode", MODES)
def test_what_the_version_before_wrote_is_found_and_read(mode: str) -> None:
    store = MemoryStore()
    store.values, store.sets = _parts(mode), BEFORE[mode]["sets"]
    tier = _machine(store, mode)
    try:
        _finds_all(tier)
        assert [tier.store.write(page) for page in PAGES] == ["present"] * 3
    finally:
        assert tier.close(60)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_written_is_what_the_version_before_wrote(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, store = _parts(mode), MemoryStore()
    tier = _machine(store, mode)
    try:
        for page in PAGES:
            nonce = before[_name(page)][0][48:60]
            monkeypatch.setattr(envelope.os, "urandom", lambda nbytes, nonce=nonce: nonce)
            assert tier.store.write(page) == "written"
            assert store.values[_name(page)] == before[_name(page)]
        assert store.sets == BEFORE[mode]["sets"]
    finally:
        assert tier.close(60)
