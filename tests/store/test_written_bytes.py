"""What a disk wore is told in bytes of files, and for each token that was served."""

from pathlib import Path

from kit.storage import Story, commit, files_in, open_store


def test_what_is_told_to_be_written_is_what_the_files_take(tmp_path: Path) -> None:
    story = Story(nbytes=50_000)
    with open_store(tmp_path) as store:
        commit(store, story, 1, 2, 3)
        assert store.flush()
        commit(store, story, 1, 2, 3)
        store.touch(story.ids(1, 2, 3))
        assert store.flush()
        cold = store.stats().cold
        assert cold is not None
        assert cold.written_bytes == sum(f.stat().st_blocks * 512 for f in files_in(tmp_path))
        assert cold.rewritten_bytes == 0


def test_bytes_are_told_for_each_restored_token(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        commit(store, Story(nbytes=50_000), 1, 2, 3)
        assert store.flush()
        assert store.stats().written_bytes_per_restored_token is None
        store.counters.request(1000, 500, 0, None)
        stats = store.stats()
        assert stats.cold is not None
        told = stats.to_dict()["written_bytes_per_restored_token"]
        assert told == stats.written_bytes_per_restored_token == stats.cold.written_bytes / 500
