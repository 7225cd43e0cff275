"""What a real store's log of events tells of what happens to its pages."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.storage import FaultyDisk, Story, commit, commit_to_disk, fetch, files_in, flip, open_store
from omlx_cache import BlockStore
from omlx_cache.identity.namespace import NOWHERE, Namespace
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.events import Event
from omlx_cache_storage.keys import BlockKey


def _of(store: BlockStore, kind: str, tier: str = "cold") -> list[Event]:
    return [e for e in store.events.page(0, 100_000, [kind]).events if e.tier == tier]


def test_a_page_that_is_stored_is_told_of_in_memory_and_then_on_the_disk(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        story = Story()
        commit_to_disk(store, story, 1, 2)
        (root, second), files = _of(store, "stored", "hot"), _of(store, "stored")
    assert [e.key for e in files] == [root.key, second.key] == [i.key for i in story.ids(1, 2)]
    for events in (files, [root, second]):
        assert [e.to_dict()["parent"] for e in events] == [None, root.key.hex()]
    assert (second.namespace, second.group) == (story.namespace, "paged")
    assert (second.position, second.tokens, second.nbytes) == (32, 16, story.nbytes)
    assert files[1].nbytes >= story.nbytes
    assert root.number < files[0].number
    assert root.at <= files[0].at


def test_a_namespace_that_is_cleared_is_one_event_for_each_tier(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        story = Story()
        commit(store, story, *range(1, 9))
        store.flush()
        before = store.events.page(None, 1).upto
        store.clear(story.namespace)
        events = store.events.page(before, 100).events
    assert [(e.kind, e.tier, e.namespace, e.detail) for e in events] == [
        ("cleared", "hot", story.namespace, "8 pages"),
        ("cleared", "cold", story.namespace, "8 pages"),
    ]


def test_a_write_that_fails_is_told_of_with_its_reason(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_store(tmp_path, disk) as store:
        disk.fail["write"] = errno.EIO
        commit(store, Story(), 1)
        store.flush(10)
        event = _of(store, "failed")[0]
        disk.fail.clear()
    assert event.detail == "not written: Input/output error"
    assert event.key == Story().id(1).key


@pytest.mark.parametrize(
    ("harm", "kinds"),
    [(flip, ["failed", "removed"]), (Path.unlink, ["removed"])],
    ids=["damaged", "gone"],
)
def test_a_page_that_cannot_be_read_is_told_of(
    tmp_path: Path, harm: Callable[[Path], object], kinds: list[str]
) -> None:
    with open_store(tmp_path) as store:
        story = Story()
        commit(store, story, 1)
        store.flush()
        store.leave_memory(story.namespace)
        harm(files_in(tmp_path)[0])
        before = store.events.page(None, 1).upto
        with pytest.raises(PageError):
            fetch(store, story.id(1))
        events = store.events.page(before, 100).events
    assert [e.kind for e in events] == kinds
    assert kinds == ["removed"] or "checksum" in events[0].detail


def test_a_request_that_got_tokens_is_one_event_and_one_that_got_none_is_none(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path) as store:
        known = Namespace(BlockKey(b"\xab" * 32), {})
        for namespace, *restored in ((known, 0, 0), (known, 96, 32), (NOWHERE, 64, 0)):
            store.requests.ask(namespace, 100).restored(*restored, 0.002, None)
        event, other = _of(store, "restored", "")
    assert other.namespace == b""
    assert (event.position, event.tokens, event.detail) == (100, 96, "64 hot, 32 cold")
    assert event.namespace == b"\xab" * 32


def test_what_another_process_writes_and_deletes_is_told_of(tmp_path: Path) -> None:
    with open_store(tmp_path) as store, open_store(tmp_path) as other:
        story = Story()
        commit(other, story, 1, 2)
        other.flush()
        store.refresh()
        other.delete(dict.fromkeys(story.ids(2), 0), 10)
        store.refresh()
        told = [e for e in store.events.page(0, 100).events if e.detail == "other process"]
    assert [(e.kind, e.tier, e.key) for e in told] == [
        ("stored", "cold", story.id(1).key),
        ("stored", "cold", story.id(2).key),
        ("removed", "cold", story.id(2).key),
    ]
    assert [e.to_dict()["parent"] for e in told] == [None] + 2 * [story.id(1).key.hex()[:16]]


def test_a_directory_that_is_read_anew_is_one_event_however_much_is_in_it(tmp_path: Path) -> None:
    with open_store(tmp_path) as first:
        commit(first, Story(), *range(1, 40))
        first.flush()
    with open_store(tmp_path) as store:
        (event,) = store.events.page(0, 100_000).events
        assert (event.kind, event.tier, event.detail) == ("resynced", "cold", "read, with 39 pages")
