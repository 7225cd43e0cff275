"""What a router is told of a prefix: by its block keys, reading and marking nothing."""

import json
from pathlib import Path

from kit.status import Known, get, operations
from kit.storage import Story, commit, commit_to_disk, open_store
from omlx_cache import BlockStore
from omlx_cache.identity.namespace import Namespace
from omlx_cache.status.prefix_lookup import MOST_KEYS
from omlx_cache.status.routes import Operations, Routes, is_status_path

BLOCK = 16
HERE = {"Host": "127.0.0.1:9000"}


def _register(store: BlockStore, story: Story, groups: tuple[str, ...] = ("paged",)) -> Namespace:
    document = {"label": "llama", "block_size": BLOCK, "key_hash": "sha256", "salt": "text:77"}
    return store.register(Namespace(story.namespace, document, groups))


def _keys(story: Story, *blocks: int) -> str:
    return ",".join(page.key.hex() for page in story.ids(*blocks))


def _ask(store: BlockStore, query: str) -> dict[str, object]:
    found = Routes(store.operations).answer("GET", f"/lookup{query}", HERE, "127.0.0.1")
    assert found.status == 200, found.body
    told: dict[str, object] = json.loads(found.body)
    return told


def test_a_router_learns_the_namespaces_and_then_how_far_a_prompt_reaches(tmp_path: Path) -> None:
    story = Story("llama")
    with open_store(tmp_path) as store:
        kept = _register(store, story)
        commit_to_disk(store, story, 1, 2, 3)
        (known,) = _ask(store, "?model=llama")["namespaces"]  # type: ignore[misc]
        assert known["namespace"] == kept.digest.hex()
        assert (known["block_size"], known["key_hash"], known["salted"]) == (16, "sha256", True)
        assert "text:77" not in json.dumps(known)
        assert _ask(store, "?model=other")["namespaces"] == []
        before = store.stats()
        told = _ask(store, f"?namespace={known['namespace']}&keys={_keys(story, 1, 2, 3, 4)}")
        assert (told["cached_tokens"], told["hot_tokens"], told["cold_tokens"]) == (48, 48, 0)
        # Every n-th key is enough.
        told = _ask(store, f"?namespace={known['namespace']}&keys={_keys(story, 2, 4)}")
        assert told["cached_tokens"] == 32
        assert told["requests"] == 0
        assert store.stats().requests == before.requests
    with open_store(tmp_path) as store:
        told = _ask(store, f"?namespace={known['namespace']}&keys={_keys(story, 1, 2, 3)}")
        assert (told["cached_tokens"], told["hot_tokens"], told["cold_tokens"]) == (48, 0, 48)


def test_a_boundary_without_its_window_or_state_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    story = Story("llama")
    with open_store(tmp_path) as store:
        kept = _register(store, story, ("paged", "state"))
        commit(store, story, 1, 2, 3)
        query = f"?namespace={kept.digest.hex()}&keys={_keys(story, 1, 2, 3)}"
        assert _ask(store, query)["cached_tokens"] == 0


def test_what_cannot_be_asked_is_told_in_words(tmp_path: Path) -> None:
    def refused(query: str, known: Operations) -> str:
        found = Routes(known).answer("GET", f"/lookup{query}", HERE, "127.0.0.1")
        assert found.status in (400, 404)
        return found.body.decode()

    assert is_status_path("/lookup?keys=ab")
    assert "each store" in refused("", operations(Known()))
    with open_store(tmp_path) as store:
        source = store.operations
        assert "with the namespace" in refused("?keys=ab", source)
        many = ",".join(["ab" * 32] * (MOST_KEYS + 1))
        assert str(MOST_KEYS) in refused(f"?namespace={'ab' * 32}&keys={many}", source)
        assert "hex digits" in refused(f"?namespace={'ab' * 32}&keys=xyz", source)
        assert "needs the keys" in refused(f"?namespace={'ab' * 32}", source)


def test_the_most_keys_fit_into_a_request_of_the_status_port(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        server = store.serve_status()
        keys = ",".join(["ab" * 32] * MOST_KEYS)
        status, _, body = get(server, f"/lookup?namespace={'cd' * 32}&keys={keys}")
        assert (status, json.loads(body)["cached_tokens"]) == (200, 0)
        assert get(server, "/lookup", method="POST")[0] == 405
