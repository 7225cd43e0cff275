"""A flush that says "durable" means the pages that the disk lost meanwhile, too."""

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kit.storage import FaultyDisk, Story, commit, open_store
from omlx_cache_storage.cold.disk import Durability, StrPath
from omlx_cache_storage.page import Buffer


class _HeldDisk(FaultyDisk):
    """Calls `before` for each page file, not for the namespace's document."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], object] = lambda: None

    def write(self, path: StrPath, pieces: Sequence[Buffer], durability: Durability) -> int:
        if len(os.path.basename(os.path.dirname(path))) == 2:
            self.before()
        return super().write(path, pieces, durability)


def test_a_flush_is_not_done_while_pages_of_a_removed_directory_are_pending_again(
    tmp_path: Path,
) -> None:
    disk, story = _HeldDisk(), Story()
    with open_store(tmp_path, disk) as store:
        commit(store, story, 1, 2)
        assert store.flush(30)
        shutil.rmtree(store.settings.cold_dir)
        writer = store.writer
        assert writer is not None
        rewriting = threading.Event()
        written: list[int] = []

        def before() -> None:
            written.append(1)
            if len(written) > 1:
                assert rewriting.wait(60)
                return
            # The third page notices that the others are lost, while a flush waits for it.
            with writer._changed:
                assert writer._changed.wait_for(lambda: bool(writer._barriers), 30)

        disk.before = before
        commit(store, story, 3)
        assert not store.flush(1.0)
        rewriting.set()
        assert store.flush(30)
        cold = store.cold
        assert cold is not None
        assert all(cold.info(page) is not None for page in story.ids(1, 2, 3))
