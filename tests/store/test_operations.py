"""What a store answers to the command line, read through the real handlers."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from kit.storage import Story, commit, files_in, open_store
from omlx_cache.control.answers import encoded
from omlx_cache.control.errors import ControlError
from omlx_cache.control.operations import operations
from omlx_cache.identity.namespace import Namespace

KIB = 1024


@pytest.fixture
def story() -> Story:
    return Story("llama")


def _ask(store: Any, name: str, **arguments: object) -> Any:
    return json.loads(encoded(operations(store)[name](arguments)))


def test_namespaces_are_summed_over_both_tiers(tmp_path: Path, story: Story) -> None:
    with open_store(tmp_path) as store:
        store.register(Namespace(story.namespace, {"model_id": "llama", "model": "f" * 64}))
        commit(store, story, 1, 2, 3)
        commit(store, Story("other"), 1)
        assert store.flush()
        store.hot.discard([story.id(3)])
        found = {entry["namespace"]: entry for entry in _ask(store, "ls")}
        mine = found[story.namespace.hex()]
        assert len(found) == 2
        assert (mine["label"], mine["pages"], mine["tokens"]) == ("llama", 3, 48)
        assert (mine["groups"], mine["tiers"]) == (["paged"], ["cold", "hot"])
        assert mine["bytes"] == sum(
            path.stat().st_blocks * 512 for path in files_in(tmp_path / story.namespace.hex())
        )
        assert len(_ask(store, "ls", limit=1)) == 1


def test_pages_are_listed_in_token_order_with_their_age(tmp_path: Path, story: Story) -> None:
    with open_store(tmp_path) as store:
        commit(store, story, 1, 2, 3)
        assert store.flush()
        store.demote(story.ids(2))
        stamp = time.time_ns() - 90 * 10**9
        store.hot.demote(story.ids(3), stamp)
        assert store.cold is not None
        store.cold.demote(story.ids(3), stamp)
        pages = _ask(store, "ls", namespace=story.namespace.hex()[:12].upper())
        assert [page["position"] for page in pages] == [16, 32, 48]
        assert [page["key"] for page in pages] == [page.key.hex() for page in story.ids(1, 2, 3)]
        assert 0 <= pages[0]["age_s"] < 60
        assert pages[1]["age_s"] is None
        assert 90 <= pages[2]["age_s"] < 150
        assert pages[0]["tiers"] == ["hot", "cold"]
        assert all(Path(page["path"]).is_file() for page in pages)
        assert len(_ask(store, "ls", namespace=story.namespace.hex(), limit=2)) == 2


def test_a_namespace_that_is_unknown_or_ambiguous_is_refused(tmp_path: Path, story: Story) -> None:
    with open_store(tmp_path, hot_cache_only=True) as store:
        for turn in range(17):
            commit(store, Story(f"{turn}"), 1)
        with pytest.raises(ControlError, match="no namespace begins") as unknown:
            _ask(store, "ls", namespace="0" * 64)
        assert unknown.value.code == "not_found"
        names = [entry["namespace"] for entry in _ask(store, "ls")]
        twice = next(n[0] for n in names if sum(m[0] == n[0] for m in names) > 1)
        with pytest.raises(ControlError, match="namespaces begin") as several:
            _ask(store, "ls", namespace=twice)
        assert several.value.code == "ambiguous"


def test_inspect_shows_the_file_or_else_the_live_page(tmp_path: Path, story: Story) -> None:
    key = story.id(1).key.hex()
    with open_store(tmp_path, write_policy="lazy") as store:
        commit(store, story, 1)
        (live,) = _ask(store, "inspect", key_prefix=key[:10])
        assert (live["tiers"], live["path"], live["checksum"]) == (["hot"], "", None)
        assert live["tensors"] == [{"name": "0.keys", "dtype": "U8", "shape": [1, 4 * KIB]}]
        assert store.flush()
        (stored,) = _ask(store, "inspect", key_prefix=key.upper())
        assert stored["tiers"] == ["hot", "cold"]
        assert stored["checksum"].startswith("xxh3-128:")
        assert stored["parent"] == story.namespace.hex()
        assert stored["tensors"] == live["tensors"]
        Path(stored["path"]).write_bytes(b"damaged")
        (damaged,) = _ask(store, "inspect", key_prefix=key)
        assert damaged["error"].startswith("corrupt: ")
        Path(stored["path"]).unlink()
        (gone,) = _ask(store, "inspect", key_prefix=key)
        assert gone["error"].startswith("unreadable: ")
        assert _ask(store, "inspect", key_prefix="0" * 64) == []


def test_clear_deletes_one_namespace(tmp_path: Path, story: Story) -> None:
    with open_store(tmp_path) as store:
        commit(store, story, 1, 2)
        commit(store, Story("other"), 1)
        assert store.flush()
        assert _ask(store, "clear", namespace=story.namespace.hex()) == {"pages": 2}
        assert len(files_in(tmp_path)) == 1
        with pytest.raises(ControlError, match="hex digits"):
            _ask(store, "clear", namespace="ab")
