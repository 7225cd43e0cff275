"""A cold directory that another user could fill: off, with the reason; memory goes on."""

from pathlib import Path

from kit.storage import Story, commit, files_in, is_right, open_store
from omlx_cache import BlockStore


def _state(store: BlockStore) -> str:
    cold = store.stats().cold
    assert cold is not None
    return cold.state


def test_a_directory_that_is_opened_to_others_while_running_is_off_until_it_is_made_private(
    tmp_path: Path,
) -> None:
    story, cold = Story(), tmp_path / "cold"
    with open_store(cold) as store:
        commit(store, story, 1)
        assert store.flush(30)
        cold.chmod(0o777)
        assert store.cold is not None
        store.cold.settle()
        assert "chmod 700" in _state(store), "also when there is nothing to write"
        commit(store, story, 2)
        assert not store.flush(30)
        assert len(files_in(cold)) == 1
        cold.chmod(0o700)
        assert store.flush(30)
        assert _state(store) == "ok"
        assert len(files_in(cold)) == 2
        assert all(is_right(store, page, story.nbytes) for page in story.ids(1, 2))
