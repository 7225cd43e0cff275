"""Which file systems other machines may change, and whether locks on files work there."""

import errno
import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from kit.storage import Story, files_in, open_cold
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.root import (
    UNKNOWN,
    FileSystemKind,
    NoLocks,
    check_sharing,
    from_statfs,
    kind_of,
    locks_work,
    mounted_at,
    named,
)

MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:50 / /home rw,relatime shared:9 master:2 - nfs4 server:/home rw,vers=4.2
41 40 8:1 / /home/me/fast rw - xfs /dev/sda1 rw
42 27 0:52 / /mnt/nas rw - cifs //nas/all rw
43 27 0:53 /sub /mnt/pool rw - btrfs /dev/sdb rw
44 27 0:54 / /mnt/with\040space\134slash rw - fuse.sshfs me@host: rw
45 27 0:55 / /auto rw - autofs systemd-1 rw
46 45 0:56 / /auto rw - nfs server:/auto rw
47 27 8:2 / /over rw - ext4 /dev/sdc1 rw
48 27 0:57 / /over rw - tmpfs tmpfs rw
broken line
50 27 0:58 / /mnt
"""


def mounted(path: str, major: int = 99, minor: int = 99) -> str:
    return mounted_at(path, os.makedev(major, minor), MOUNTINFO).name


@pytest.mark.parametrize(
    ("path", "device", "name"),
    [
        ("/var/cache", (254, 0), "ext4"),
        ("/", (254, 0), "ext4"),
        ("/home/me/cold", (0, 50), "nfs4"),
        ("/home", (0, 50), "nfs4"),
        ("/home/me/fast/cold", (8, 1), "xfs"),
        ("/homes/me", (254, 0), "ext4"),
        ("/mnt/nas/cold", (0, 52), "cifs"),
        ("/mnt/nas2/cold", (254, 0), "ext4"),
        (r"/mnt/with space\slash/x", (0, 54), "fuse.sshfs"),
    ],
)
def test_the_deepest_mount_point_above_a_path_counts(
    path: str, device: tuple[int, int], name: str
) -> None:
    assert mounted(path, *device) == name
    assert mounted(path) == name


def test_of_mounts_on_one_point_the_one_with_the_paths_device_counts() -> None:
    assert mounted("/over/cold", 8, 2) == "ext4"
    assert mounted("/over/cold", 0, 57) == "tmpfs"
    assert mounted("/auto/cold", 0, 56) == "nfs"


def test_without_a_device_of_that_number_the_latest_mount_counts() -> None:
    """A subvolume of btrfs has a device number that no line names."""
    assert mounted("/mnt/pool/cold") == "btrfs"
    assert mounted("/over/cold") == "tmpfs"


def test_a_text_that_names_no_such_mount_says_nothing() -> None:
    assert mounted_at("/cold", os.makedev(1, 1), "") == UNKNOWN
    assert mounted_at("cold", os.makedev(1, 1), MOUNTINFO) == UNKNOWN


SHARES = ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "lustre", "virtiofs"]
DISKS = ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk"]


@pytest.mark.parametrize("name", [*SHARES, *DISKS])
def test_what_another_machine_may_change_is_a_network_share(name: str) -> None:
    assert named(name) == FileSystemKind(name, name in SHARES)


def statfs(name: bytes, flags: int) -> bytes:
    """What Darwin fills in, at the offsets of its 64-bit inode layout."""
    answer = bytearray(2168)
    struct.pack_into("=I", answer, 64, flags)
    answer[72 : 72 + len(name)] = name
    answer[88:101] = b"/Volumes/Cold"
    return bytes(answer)


def test_darwin_says_itself_what_is_local() -> None:
    assert from_statfs(statfs(b"apfs", 0x1000 | 0x4000)) == FileSystemKind("apfs", False)
    assert from_statfs(statfs(b"smbfs", 0x4000)) == FileSystemKind("smbfs", True)


def test_the_system_is_asked_and_says_that_a_disk_is_local(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    kind = kind_of(tmp_path / "link")
    assert kind.name
    assert not kind.network
    if sys.platform == "linux":
        done = subprocess.run(["df", "--output=fstype", tmp_path], capture_output=True, text=True)
        assert kind.name == done.stdout.split()[-1]


def test_locks_work_on_a_disk_of_this_machine(tmp_path: Path) -> None:
    assert locks_work(tmp_path / "ledger", FileSystem())
    assert locks_work(tmp_path / "ledger", FileSystem())
    assert (tmp_path / "ledger").stat().st_mode & 0o777 == 0o600
    assert check_sharing(tmp_path, FileSystem()) == ""
    # Asking leaves no lock behind.
    with (tmp_path / "ledger").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Unlocked(FileSystem):
    """A file system that grants every lock to everybody, or refuses each with an error."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self._number = number

    def lock(self, fd: int, *, shared: bool = False, deadline: float = 0.0) -> bool:
        if self._number:
            raise OSError(self._number, os.strerror(self._number))
        return True


@pytest.mark.parametrize("number", [0, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_has_none_that_work(tmp_path: Path, number: int) -> None:
    assert not locks_work(tmp_path / "ledger", Unlocked(number))


def test_a_tier_refuses_a_directory_without_locks_until_it_has_them(tmp_path: Path) -> None:
    fs = Unlocked()
    tier = open_cold(tmp_path / "cold", fs=fs)
    assert re.search("unavailable: .*locks on files do nothing", tier.usage().state)
    with pytest.raises(NoLocks):
        tier.write(Story().page(1), 1, {})
    assert files_in(tmp_path / "cold") == []
    fs.lock = FileSystem().lock
    tier.settle()
    assert (tier.usage().state, tier.write(Story().page(1), 1, {})) == ("ok", "written")


def test_a_tier_on_a_network_share_warns_once_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "omlx_cache_storage.cold.root.kind_of", lambda _path: FileSystemKind("cifs", True)
    )
    tier = open_cold(tmp_path / "cold")
    assert tier.write(Story().page(1), 1, {}) == "written"
    shutil.rmtree(tmp_path / "cold")
    assert tier.write(Story().page(1), 1, {}) == "written"
    (warning,) = [r.message for r in caplog.records if "cifs" in r.message]
    assert re.search(r"\(cifs\).* other machines .* directory of its own", warning)
