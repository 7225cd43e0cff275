"""A listing of many pages holds up nobody: no sorting and no making of paths under the lock."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kit.storage import FaultyDisk, Story, open_cold


def test_pages_are_found_while_another_is_written(tmp_path: Path) -> None:
    story, disk = Story(), FaultyDisk()
    cold = open_cold(tmp_path, fs=disk)
    cold.write(story.page(1), 10**18, story.document)
    disk.reached.clear()
    disk.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        try:
            written = threads.submit(cold.write, story.page(2), 10**18, story.document)
            assert disk.reached.wait(30)
            assert threads.submit(cold.info, story.id(1)).result(5) is not None
        finally:
            disk.gate.set()
        assert written.result(30) == "written"
