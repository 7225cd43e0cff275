"""What a prefix-aware router is told, and what it then believes."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kit.storage import Story, commit, open_store
from kit.units import KIB
from omlx_cache.status.kv_events import KvEvent, kv_document, kv_events
from omlx_cache_storage.events import EventLog

Known = dict[str, set[object]]


def _believe(known: Known, told: list[KvEvent]) -> None:
    """Follow batches as a router does that keeps a set of blocks by medium."""
    for event in told:
        medium, hashes = str(event["medium"]), event.get("block_hashes", [])
        assert isinstance(hashes, list)
        if event["type"] == "BlockStored":
            known[medium].update(hashes)
        elif event["type"] == "BlockRemoved":
            known[medium].difference_update(hashes)
        else:
            known[medium].clear()


def test_a_router_that_follows_a_store_knows_its_blocks(tmp_path: Path) -> None:
    known: Known = {"CPU": set(), "STORAGE": set()}
    after = 0
    with open_store(tmp_path, hot_bytes=96 * KIB, cold_bytes=512 * KIB) as store:
        for name in "abcde":
            story = Story(name, nbytes=8 * KIB)
            commit(store, story, *range(1, 20))
            store.flush()
            if name == "b":
                store.clear(story.namespace)
            if name == "d":
                store.delete(dict.fromkeys(story.ids(1, 2), 0), 10)
            while (document := kv_document(store.events, after, 7))["upto"] != after:
                for batch in document["batches"]:
                    assert batch["seq"] == document["upto"]
                    assert all(not event.get("token_ids") for event in batch["events"])
                    _believe(known, batch["events"])
                after = document["upto"]
        # Of a namespace that is cleared a router forgets more than is gone, and never less.
        here = {
            "CPU": {e.id.key.hex() for e in store.hot.entries() if e.id.group == "paged"},
            "STORAGE": {e.page.key.hex() for e in store.cold.listing() if e.page.group == "paged"},
        }
        assert all(known[medium] <= here[medium] for medium in here)
        assert known["CPU"] == here["CPU"]


@given(st.lists(st.tuples(st.sampled_from(["paged", "state"]), st.integers(1, 4)), max_size=30))
def test_a_block_is_where_its_paged_page_is_whatever_else_comes_and_goes(
    toggled: list[tuple[str, int]],
) -> None:
    story, log, here = Story(), EventLog(), set[tuple[str, int]]()
    log.note_page("stored", "hot", story.meta(9))
    for page in toggled:
        group, number = page
        log.note_page(
            "evicted" if page in here else "stored", "hot", story.meta(number, group=group)
        )
        here ^= {page}
    known: Known = {"CPU": set(), "STORAGE": set()}
    _believe(known, list(kv_events(log.page(0, 100).events, log.paged())))
    expected = {story.id(number).key.hex() for group, number in here if group == "paged"}
    assert known["CPU"] == expected | {story.id(9).key.hex()}


def test_blocks_that_follow_each_other_are_one_event_as_vllm_has_it() -> None:
    story, log = Story(), EventLog()
    for number in (1, 2, 3):
        log.note_page("stored", "hot", story.meta(number))
    log.note_page("stored", "hot", story.meta(7))
    events = kv_events(log.page(0, 10).events, log.paged())
    keys = {number: story.id(number).key.hex() for number in (1, 2, 3, 6, 7)}
    assert events[0] == {
        "type": "BlockStored",
        "block_hashes": [keys[1], keys[2], keys[3]],
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": 16,
        "lora_id": None,
        "medium": "CPU",
        "namespace": story.namespace.hex(),
    }
    assert [(e["block_hashes"], e["parent_block_hash"]) for e in events[1:]] == [
        ([keys[7]], keys[6])
    ]


def test_who_has_missed_something_is_told_to_forget_all_first() -> None:
    log, story = EventLog(4), Story()
    for number in range(1, 10):
        log.note_page("stored", "hot", story.meta(number))
    (batch,) = kv_document(log, 0, 100)["batches"]
    assert [e["type"] for e in batch["events"][:3]] == [
        "AllBlocksCleared",
        "AllBlocksCleared",
        "BlockStored",
    ]
    assert kv_document(log, 5, 100)["dropped"] == 0
