"""A page's file name is gone with the page: no `Path`, whose parts Python 3.12 keeps for ever."""

import os
from collections.abc import Sequence
from pathlib import Path

from kit.storage import FaultyDisk, Story, open_cold, read_cold
from omlx_cache_storage.cold.disk import Durability, StrPath
from omlx_cache_storage.cold.tier import ColdTier
from omlx_cache_storage.page import Buffer

KIB = 1024
LIMIT = 200 * KIB


class _Noting(FaultyDisk):
    """Notes the kinds of paths that lead to page files, temporary files and their directories."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = os.fspath(root)
        self.kinds: dict[str, set[type]] = {}

    def _note(self, what: str, path: StrPath) -> None:
        if os.fspath(path) != self.root:
            self.kinds.setdefault(what, set()).add(type(path))

    def make_directory(self, path: StrPath) -> bool:
        self._note("make_directory", path)
        return super().make_directory(path)

    def remove_directory(self, path: StrPath) -> None:
        self._note("remove_directory", path)
        super().remove_directory(path)

    def write(self, path: StrPath, pieces: Sequence[Buffer], durability: Durability) -> int:
        self._note("write", path)
        return super().write(path, pieces, durability)

    def publish(self, temporary: StrPath, final: StrPath) -> None:
        self._note("publish", temporary)
        self._note("publish", final)
        super().publish(temporary, final)

    def open(self, path: StrPath) -> int:
        self._note("open", path)
        return super().open(path)

    def set_times(self, path: StrPath, time_ns: int) -> None:
        self._note("set_times", path)
        super().set_times(path, time_ns)

    def remove(self, path: StrPath) -> None:
        self._note("remove", path)
        super().remove(path)

    def scan(self, path: StrPath):  # type: ignore[no-untyped-def]
        self._note("scan", path)
        return super().scan(path)


def test_no_path_object_is_made_of_what_a_page_passes_through(tmp_path: Path) -> None:
    disk = _Noting(tmp_path)
    cold = open_cold(tmp_path, LIMIT, fs=disk, durability="fsync")
    for turn in range(6):
        story = Story(f"story {turn}")
        for number in (1, 2):
            assert cold.write(story.page(number), 10**18 + turn - 1, story.document) == "written"
        read_cold(cold, story.id(1))
        cold.touch(story.ids(2), 10**18 + turn)
        cold.settle()
    assert cold.usage().evicted_pages, "the budget was too large for this test"
    cold.discard({entry.page for entry in cold.listing()})
    ColdTier(tmp_path, LIMIT, fs=disk).open()
    done = {"make_directory", "remove_directory", "write", "publish", "open", "set_times"}
    assert done | {"remove", "scan"} == set(disk.kinds)
    assert {kind for kinds in disk.kinds.values() for kind in kinds} == {str}
