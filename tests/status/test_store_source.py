"""What one store's status has, from a real store."""

import gc
import json
from pathlib import Path

from kit.storage import Story, commit, open_store
from omlx_cache.identity.namespace import Namespace
from omlx_cache.status.store_source import StoreSource
from omlx_cache_daemon.changing import change_pins
from omlx_cache_storage.hints import PinRecord
from omlx_cache_storage.keys import BlockKey, KeyChain, as_tokens

BLOCK = 16


def _registered(story: Story) -> Namespace:
    document = {"label": "llama", "block_size": BLOCK, "key_hash": "sha256"}
    return Namespace(story.namespace, document)


def test_a_process_says_who_it_is_and_what_it_holds(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        store.add_label("models/llama-8b")
        store.service = {"port": 8080}
        (process,) = StoreSource(store).processes()
        assert process["title"] == "store :8080, llama-8b"
        assert (process["role"], process["error"]) == ("store", None)
        assert process["cold_dir"] == str(tmp_path)
        stats = process["stats"]
        assert isinstance(stats, dict)
        assert stats["hot"]["limit_bytes"] == store.settings.hot_bytes
        json.dumps(process)


def test_the_tree_is_asked_level_by_level(tmp_path: Path) -> None:
    story = Story("llama")
    with open_store(tmp_path) as store:
        kept = store.register(_registered(story))
        commit(store, story, 1, 2, 3)
        assert store.flush()
        source = StoreSource(store)
        (root,) = source.prefixes(None, None, 10)["rows"]  # type: ignore[misc, attr-defined]
        assert (root["model"], root["prefixes"], root["blocks"]) == ("llama", 1, 3)
        level = source.prefixes(root["namespace"], None, 10)
        (run,) = level["rows"]  # type: ignore[misc, attr-defined]
        assert (run["first"], run["last"], run["children"]) == (0, 48, 0)
        assert run["key"] == story.id(3).key.hex()
        assert run["tiers"]["hot"]["pages"] == run["tiers"]["cold"]["pages"] == 3
        behind = source.prefixes(root["namespace"], run["key"], 10)
        assert (behind["rows"], behind["found"]) == ([], True)
        gone = source.prefixes(root["namespace"], "ab" * 32, 10)
        assert (gone["rows"], gone["found"]) == ([], False)
        json.dumps([level, behind])
        assert kept.digest == story.namespace


def test_what_a_pin_of_the_directory_keeps_is_marked(tmp_path: Path) -> None:
    story, other = Story("llama"), Story("other")
    keys = tuple(page.key for page in story.ids(1, 2))
    with open_store(tmp_path) as store:
        commit(store, story, 1, 2)
        pin = PinRecord("key", keys[-1].hex(), 1, None, story.namespace, keys)
        change_pins(tmp_path, lambda before: (*before, pin))
        commit(store, other, 1)
        assert store.flush()
        source = StoreSource(store)
        levels = [source.prefixes(one.namespace.hex(), None, 5) for one in (story, other)]
        marks = [[row["pinned"] for row in level["rows"]] for level in levels]  # type: ignore[attr-defined]
        assert marks == [[True], [False]]


def _remember(store: object, story: Story, tokens: int) -> KeyChain:
    chain = KeyChain(story.namespace, as_tokens(range(64 * BLOCK)), BLOCK)
    history = store.requests.explainer  # type: ignore[attr-defined]
    history.ask(1, story.namespace, chain.tokens[:tokens])
    return chain


def test_text_is_given_only_when_asked_and_only_of_what_is_remembered(tmp_path: Path) -> None:
    story = Story("llama")
    with open_store(tmp_path, status="on") as store:
        kept = store.register(_registered(story))
        commit(store, story, 1, 2, 3)
        store.decoder = lambda tokens, model: f"{model}:" + " ".join(map(str, tokens))
        source, name = StoreSource(store), story.namespace.hex()
        _remember(store, story, 40)
        assert "text" not in source.prefixes(name, None, 10)["rows"][0]  # type: ignore[index]
        assert source.prefixes(name, None, 10, text=True)["rows"][0]["text"] is None  # type: ignore[index]
        _remember(store, story, 60)
        (row,) = source.prefixes(name, None, 10, text=True)["rows"]  # type: ignore[misc, attr-defined]
        assert row["text"].startswith("llama:0 1 2 ")
        store.decoder = lambda tokens, model: "x" * 10_000
        (row,) = source.prefixes(name, None, 10, text=True)["rows"]  # type: ignore[misc, attr-defined]
        assert row["text"] == "x" * 300 + "…"
        store.decoder = None
        (row,) = source.prefixes(name, None, 10, text=True)["rows"]  # type: ignore[misc, attr-defined]
        assert row["text"] is None
        assert kept.digest == story.namespace


def test_requests_come_newest_first_with_their_why_and_no_text(tmp_path: Path) -> None:
    story = Story("llama")
    with open_store(tmp_path, status="on") as store:
        store.decoder = lambda tokens, model: "SECRET"
        for count in (1, 2):
            asked = store.requests.ask(story.namespace.hex(), {"label": "llama"}, 16 * count)
            asked.restored(0, 0, 0.0, "absent")
            asked.ended(3)
        found = StoreSource(store).requests(10)
        assert [row["number"] for row in found] == [2, 1]
        assert all(row["pid"] and row["why"] for row in found)
        assert len(StoreSource(store).requests(1)) == 1
        assert "SECRET" not in json.dumps(found)


def test_bad_questions_are_answered_in_words(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        source = StoreSource(store)
        assert "hex digits" in str(source.prefixes("nonsense", None, 5)["error"])
        assert "namespace" in str(source.prefixes(None, "ab" * 32, 5)["error"])
        assert source.prefixes("ab" * 32, None, -5)["rows"] == []
        (settings,) = source.settings()
        assert "hot_bytes" in settings["settings"]  # type: ignore[operator]


def test_a_closed_store_still_answers_and_a_lost_one_is_let_go(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    source = StoreSource(store)
    store.close()
    assert len(source.processes()) == 1
    assert source.prefixes(None, None, 5)["rows"] == []
    del store
    gc.collect()
    assert source.processes() == source.settings() == source.requests(5) == []
    assert "gone" in str(source.prefixes(None, None, 5)["error"])
    assert source.events(None, 5)["events"] == []


def test_a_root_is_found_by_short_and_long_keys(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        found = StoreSource(store).prefixes("ab" * 32, BlockKey(b"k" * 16).hex(), 5)
        assert found["found"] is False
