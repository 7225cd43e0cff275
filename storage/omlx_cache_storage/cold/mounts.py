"""What kind of file system a directory lies on, and whether locks on files work there.

Processes of one machine share a cold directory by locks on its files. Where locks do nothing they
would count each other's bytes twice or not at all; on a network share they may hold among the
processes of one machine only.
"""

import ctypes
import errno
import os
import re
import struct
import sys
from typing import NamedTuple

from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.format.names import LEDGER_FILE
from omlx_cache_storage.private import StrPath

MOUNTS = "/proc/self/mountinfo"
NETWORK = frozenset(
    {
        "9p", "afpfs", "afs", "beegfs", "ceph", "ceph-fuse", "cifs", "coda", "davfs", "davfs2",
        "fakeowner", "gcsfuse", "gfs2", "glusterfs", "gpfs", "grpcfuse", "juicefs", "lustre",
        "mfs", "moosefs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "rclone",
        "s3fs", "smb2", "smb3", "smbfs", "sshfs", "vboxsf", "virtiofs", "vmhgfs", "vmhgfs-fuse",
        "webdav",
    }
)  # fmt: skip
"""File systems that another machine may change, the host of a virtual one included; with or without
`fuse.` before the name."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_MNT_LOCAL = 0x1000
_STATFS = struct.Struct("=II5QII4I16s1024s1024s8I")
"""Darwin's `struct statfs` with 64-bit inodes: sizes and counts, fsid, owner, type, flags, subtype,
the type's name, where it is mounted, from what, and what is reserved."""
_FLAGS, _TYPE_NAME = 11, 13


class FileSystemKind(NamedTuple):
    """The name of a file system's kind, "" where the system does not tell; `network`: other
    machines may change what is there."""

    name: str
    network: bool


UNKNOWN = FileSystemKind("", False)


class NoLocks(OSError):
    """Locks on files do nothing in a directory; `strerror` says what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.ENOLCK, text)


def check_sharing(directory: StrPath, fs: FileSystem) -> str:
    """Return what to warn of, "" for a directory that processes of one machine alone can change.

    Its ledger is made if it is missing, and locked for a moment. Raises NoLocks where processes
    cannot share the directory, OSError for what the disk refuses. Waits for the disk.
    """
    kind = kind_of(directory)
    where = f"a file system ({kind.name})" if kind.name else "a file system"
    if not locks_work(os.path.join(directory, LEDGER_FILE), fs):
        raise NoLocks(
            f"{directory} lies on {where} on which locks on files do nothing, so that processes "
            "cannot keep its budget together: name a directory on a disk of this machine "
            "(OMLX_CACHE_COLD_DIR), or mount the share with locks"
        )
    if not kind.network:
        return ""
    return (
        f"{directory} lies on {where} that other machines may change too: its budget holds for the "
        "processes of this machine, and pages of another machine are found late, or not at all; "
        "give each machine a directory of its own"
    )


def kind_of(path: StrPath) -> FileSystemKind:
    """Return what kind of file system an existing path lies on; `UNKNOWN` where that cannot be
    told. Raises nothing."""
    try:
        real = os.path.realpath(path)
        if sys.platform == "darwin":
            return _darwin(real)
        device = os.stat(real).st_dev
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            return mounted_at(real, device, mounts.read())
    except (OSError, ValueError, AttributeError):
        return UNKNOWN


def mounted_at(path: str, device: int, mountinfo: str) -> FileSystemKind:
    """Return the kind of the file system that holds a path without links, from the text of
    `/proc/self/mountinfo`. Pure.

    Of mount points above the path the deepest counts, of those the latest; those of another device
    only if none has the path's, as for a subvolume.
    """
    best, found = (False, -1), UNKNOWN
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, types = before.split(" "), after.split(" ")
        if len(fields) < 6 or not types[0]:
            continue
        point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), fields[4])
        if not _is_below(path, point):
            continue
        rank = fields[2] == f"{os.major(device)}:{os.minor(device)}", len(point)
        if rank >= best:
            best, found = rank, named(types[0])
    return found


def named(name: str) -> FileSystemKind:
    """Return the kind of a file system by the name that Linux has for it. Pure."""
    return FileSystemKind(name, name.removeprefix("fuse.") in NETWORK)


def from_statfs(answer: bytes) -> FileSystemKind:
    """Return the kind of a file system from what Darwin's `statfs` filled in. Pure; raises
    ValueError for too few bytes."""
    if len(answer) < _STATFS.size:
        raise ValueError(f"a struct statfs has {_STATFS.size} bytes, this one {len(answer)}")
    fields = _STATFS.unpack_from(answer)
    name = fields[_TYPE_NAME].partition(b"\0")[0].decode("ascii", "replace")
    return FileSystemKind(name, not fields[_FLAGS] & _MNT_LOCAL)


def locks_work(file: StrPath, fs: FileSystem) -> bool:
    """Return whether a lock on a file keeps others out; makes the file if it is missing, and holds
    the lock for a moment, unless somebody has it: that is an answer too.

    Raises OSError for what a disk refuses otherwise.
    """
    first = fs.open_shared(file)
    try:
        # A descriptor of its own, as another process has one: copies would share the lock.
        second = fs.open_shared(file)
        try:
            return not fs.try_lock(first) or not fs.try_lock(second)
        finally:
            fs.close(second)
            fs.unlock(first)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    finally:
        fs.close(first)


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _darwin(path: str) -> FileSystemKind:
    libc = ctypes.CDLL(None, use_errno=True)
    # Intel Macs keep the call with 32-bit inodes under the plain name.
    call = libc["statfs$INODE64" if os.uname().machine == "x86_64" else "statfs"]
    answer = ctypes.create_string_buffer(_STATFS.size)
    if call(os.fsencode(path), answer):
        raise OSError(ctypes.get_errno(), "statfs failed")
    return from_statfs(answer.raw)
