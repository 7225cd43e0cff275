import os
from pathlib import Path

import pytest

from kit.storage.mounts import small_disk
from kit.trees import write_tree
from omlx_cache.settings.machine import (
    cgroup_limit,
    directory_trouble,
    disk_space,
)


def test_the_lowest_limit_of_a_version_2_group_and_its_ancestors_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/memory.max": "1000000\n",
        "sys/fs/cgroup/other/memory.max": "5\n",
    }
    write_tree(tmp_path, files)
    assert cgroup_limit(tmp_path) == 1000000


def test_a_container_sees_its_limit_at_the_mount(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/of/the/host\n", "sys/fs/cgroup/memory.max": "2000000\n"}
    write_tree(tmp_path, files)
    assert cgroup_limit(tmp_path) == 2000000


def test_version_1_counts_and_its_no_limit_does_not(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    write_tree(tmp_path, files)
    assert cgroup_limit(tmp_path) is None
    write_tree(tmp_path, {"sys/fs/cgroup/memory/job/memory.limit_in_bytes": "3000000\n"})
    assert cgroup_limit(tmp_path) == 3000000


def test_a_directory_that_does_not_exist_has_its_ancestor_s_disk(tmp_path: Path) -> None:
    space = disk_space(tmp_path / "not" / "yet")
    assert space.total == disk_space(tmp_path).total > space.free > 0
    assert not (tmp_path / "not").exists()


def test_a_directory_that_others_may_change_is_trouble_before_a_store_is_opened(
    tmp_path: Path,
) -> None:
    cold = tmp_path / "cold"
    assert directory_trouble(cold) == ""
    cold.mkdir()
    cold.chmod(0o777)
    assert directory_trouble(cold) == "", "an empty one is made private"
    (cold / "something").touch()
    assert "chmod 700" in directory_trouble(cold)
    cold.chmod(0o755)
    assert directory_trouble(cold) == ""


def test_a_disk_that_is_read_only_is_said_to_be_that(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        disk.remount("ro")
        assert directory_trouble(disk.path / "cold") == f"{disk.path}: Read-only file system"


def test_a_directory_whose_mode_forbids_writing_is_said_to_be_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: not mode & os.W_OK)
    assert directory_trouble(tmp_path) == f"{tmp_path}: Permission denied"


def test_a_link_to_a_disk_that_is_not_there_is_trouble(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "unplugged")
    for directory in (tmp_path / "link", tmp_path / "link" / "cold"):
        assert directory_trouble(directory) == f"{tmp_path / 'link'} is a link to what is not there"
    (tmp_path / "unplugged").mkdir()
    assert directory_trouble(tmp_path / "link" / "cold") == ""
