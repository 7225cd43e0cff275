"""What one store's status has, from a real store."""

import json
from pathlib import Path
from typing import Any

import pytest

from kit.storage import Story, commit, commit_to_disk, open_store
from omlx_cache import BlockStore
from omlx_cache.control.errors import ControlError
from omlx_cache.control.serialization import encoded
from omlx_cache.identity.namespace import Namespace
from omlx_cache_daemon.changing import change_pins
from omlx_cache_storage.keys import KeyChain, as_tokens
from omlx_cache_storage.pins import PinRecord

BLOCK = 16


def _ask(store: BlockStore, name: str, **arguments: object) -> Any:
    return json.loads(encoded(store.operations[name](arguments)))


def _level(
    store: BlockStore, namespace: str | None, parent: str | None, limit: int, **more: object
) -> Any:
    return _ask(store, "prefixes", namespace=namespace, parent=parent, limit=limit, **more)


def _registered(story: Story) -> Namespace:
    document = {"label": "llama", "block_size": BLOCK, "key_hash": "sha256"}
    return Namespace(story.namespace, document)


def test_the_tree_is_asked_level_by_level(tmp_path: Path) -> None:
    story = Story("llama")
    with open_store(tmp_path) as store:
        kept = store.register(_registered(story))
        commit_to_disk(store, story, 1, 2, 3)
        (root,) = _level(store, None, None, 10)["rows"]
        assert (root["model"], root["prefixes"], root["blocks"]) == ("llama", 1, 3)
        level = _level(store, root["namespace"], None, 10)
        (run,) = level["rows"]
        assert (run["first"], run["last"], run["children"]) == (0, 48, 0)
        assert run["key"] == story.id(3).key.hex()
        assert run["tiers"]["hot"]["pages"] == run["tiers"]["cold"]["pages"] == 3
        behind = _level(store, root["namespace"], run["key"], 10)
        assert (behind["rows"], behind["found"]) == ([], True)
        gone = _level(store, root["namespace"], "ab" * 32, 10)
        assert (gone["rows"], gone["found"]) == ([], False)
        assert kept.digest == story.namespace


def test_what_a_pin_of_the_directory_keeps_is_marked(tmp_path: Path) -> None:
    story, other = Story("llama"), Story("other")
    keys = tuple(page.key for page in story.ids(1, 2))
    with open_store(tmp_path) as store:
        commit(store, story, 1, 2)
        pin = PinRecord("key", keys[-1].hex(), 1, None, story.namespace, keys)
        change_pins(tmp_path, lambda before: (*before, pin))
        commit_to_disk(store, other, 1)
        levels = [_level(store, one.namespace.hex(), None, 5) for one in (story, other)]
        marks = [[row["pinned"] for row in level["rows"]] for level in levels]
        assert marks == [[True], [False]]


def _remember(store: BlockStore, story: Story, tokens: int) -> KeyChain:
    chain = KeyChain(story.namespace, as_tokens(range(64 * BLOCK)), BLOCK)
    history = store.requests.explainer
    history.ask(1, story.namespace, chain.tokens[:tokens])
    return chain


def test_text_is_given_only_when_asked_and_only_of_what_is_remembered(tmp_path: Path) -> None:
    story = Story("llama")
    with open_store(tmp_path, status="on") as store:
        kept = store.register(_registered(story))
        commit(store, story, 1, 2, 3)
        store.decoder = lambda tokens, model: f"{model}:" + " ".join(map(str, tokens))
        name = story.namespace.hex()
        _remember(store, story, 40)
        assert "text" not in _level(store, name, None, 10)["rows"][0]
        assert _level(store, name, None, 10, text=True)["rows"][0]["text"] is None
        _remember(store, story, 60)
        (row,) = _level(store, name, None, 10, text=True)["rows"]
        assert row["text"].startswith("llama:0 1 2 ")
        store.decoder = lambda tokens, model: "x" * 10_000
        (row,) = _level(store, name, None, 10, text=True)["rows"]
        assert row["text"] == "x" * 300 + "…"
        store.decoder = None
        (row,) = _level(store, name, None, 10, text=True)["rows"]
        assert row["text"] is None
        assert kept.digest == story.namespace


def test_requests_come_newest_first_with_their_why_and_no_text(tmp_path: Path) -> None:
    story = Story("llama")
    with open_store(tmp_path, status="on") as store:
        store.decoder = lambda tokens, model: "SECRET"
        for count in (1, 2):
            asked = store.requests.ask(Namespace(story.namespace, {"label": "llama"}), 16 * count)
            asked.restored(0, 0, 0.0, "absent")
            asked.ended(3)
        found = _ask(store, "recent", limit=10)
        assert [row["number"] for row in found] == [2, 1]
        assert all(row["pid"] and row["why"] for row in found)
        assert len(_ask(store, "recent", limit=1)) == 1
        assert "SECRET" not in json.dumps(found)


def test_bad_questions_are_answered_in_words(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        for namespace, parent, limit, words in (
            ("nonsense", None, 5, "hex digits"),
            (None, "ab" * 32, 5, "namespace"),
        ):
            with pytest.raises(ControlError, match=words):
                _level(store, namespace, parent, limit)
        (settings,) = _ask(store, "settings")
        assert "hot_bytes" in settings["settings"]
