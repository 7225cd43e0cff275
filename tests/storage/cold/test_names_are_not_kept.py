"""A page's file name is gone with the page: no `Path`, whose parts Python 3.12 keeps for ever."""

from pathlib import Path
from typing import Any

from kit.storage import FaultyDisk, Story, open_cold, read_cold
from omlx_cache_storage.cold.tier import ColdTier

KIB = 1024
LIMIT = 200 * KIB
NAMING = {"make_directory", "remove_directory", "publish", "open", "set_times", "remove", "scan"}


class Noting(FaultyDisk):
    """Notes how paths are given of page files, temporary files and their directories."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = str(root)
        self.kinds: dict[str, set[type]] = {}

    def _enter(self, name: str, *given: Any) -> None:
        super()._enter(name, *given)
        if name in NAMING:
            kinds = {type(path) for path in given[:2] if str(path) != self.root}
            self.kinds.setdefault(name, set()).update(kinds - {int})


def test_no_path_object_is_made_of_what_a_page_passes_through(tmp_path: Path) -> None:
    disk = Noting(tmp_path)
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
    assert set(disk.kinds) == NAMING
    assert {kind for kinds in disk.kinds.values() for kind in kinds} == {str}
