"""A model's pages leave memory when their server clears its cache; the disk is left as it is."""

from pathlib import Path

from kit.storage import Story, commit, files_in, open_store


def test_one_namespace_leaves_memory_and_is_found_on_the_disk(tmp_path: Path) -> None:
    mine, other = Story("llama"), Story("other")
    with open_store(tmp_path) as store:
        commit(store, mine, 1, 2)
        commit(store, other, 1)
        assert store.flush()
        held, files = store.hot_usage(), files_in(tmp_path)
        freed = store.leave_memory(mine.namespace)
        assert (store.hot_usage().pages, store.hot_usage().nbytes) == (1, held.nbytes - freed)
        assert files_in(tmp_path) == files
        assert {page.tiers for page in store.listing() if page.namespace == mine.namespace} == {
            ("cold",)
        }


def test_what_the_disk_lacks_stays_in_memory(tmp_path: Path) -> None:
    story = Story("llama")
    with open_store(tmp_path, write_policy="lazy") as store:
        commit(store, story, 1, 2)
        assert not files_in(tmp_path)
        assert store.leave_memory(story.namespace) == 0
        assert store.hot_usage().pages == 2
