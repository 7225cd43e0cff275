"""The directory of a cold tier itself: whether it is there, is the one that it was, and is shared.

A disk that is not mounted leaves no directory, or an empty one, which is not taken for the cache:
the ledger has an identity, and the user's own state directory remembers which one a path had and
where its disk was mounted. Within a process the device counts as well.

Processes share a directory by locks on its files. Where locks do nothing, processes would count
each other's bytes twice or not at all. On a network share locks may hold among the processes of one
machine only.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import struct
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.catalog import digest_of
from omlx_cache_storage.cold.disk import Descriptor, Durability, FileSystem, StrPath, replace_file
from omlx_cache_storage.cold.ledger import read_identity
from omlx_cache_storage.cold.small_files import read_document
from omlx_cache_storage.format.names import (
    BUDGET_FILE,
    KEEPER_FILE,
    LEDGER_FILE,
    PINS_FILE,
    REUSE_FILE,
    WRITES_FILE,
)

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
_MOUNT = re.compile(r"^\d+ \d+ (\d+:\d+) \S+ (\S+) \S+ (?:\S+ )*?- (\S+)", re.MULTILINE)
"""A line of MOUNTS: the numbers of its device, where it is mounted, and the file system's name."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_MNT_LOCAL = 0x1000
_STATFS = struct.Struct("=II5QII4I16s1024s1024s8I")
_FLAGS, _TYPE_NAME = 11, 13


class FileSystemKind(NamedTuple):
    """The name of a file system's kind, "" where the system does not tell it; `network`: other
    machines may change its files."""

    name: str
    network: bool


UNKNOWN = FileSystemKind("", False)


class NoLocks(OSError):
    """Locks on files do nothing in a directory; `strerror` says what to do."""


def check_sharing(directory: StrPath, fs: FileSystem) -> str:
    """Return a warning, "" for a directory that processes of one machine alone can change.

    Its ledger is made if it is missing, and locked for a moment. Raises NoLocks where processes
    cannot share the directory, OSError where the disk fails. Waits for the disk.
    """
    kind = kind_of(directory)
    where = f"a file system ({kind.name})" if kind.name else "a file system"
    if not locks_work(os.path.join(directory, LEDGER_FILE), fs):
        raise NoLocks(
            errno.ENOLCK,
            f"{directory} lies on {where} on which locks on files do nothing, so that processes "
            "cannot keep its budget together: name a cold_dir on a disk of this machine, or mount "
            "the share with locks",
        )
    if not kind.network:
        return ""
    return (
        f"{directory} lies on {where} that other machines may change too: its budget holds for the "
        "processes of this machine, and pages of another machine are found late, or not at all; "
        "give each machine a directory of its own"
    )


def kind_of(path: StrPath) -> FileSystemKind:
    """Return the kind of file system that an existing path lies on; `UNKNOWN` where that cannot be
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
    `/proc/self/mountinfo`.

    Of the mount points above the path the deepest counts, then the latest. A mount point of another
    device counts only if none has the path's, as for a subvolume.
    """
    best, found = (False, -1), UNKNOWN
    for number, escaped, name in _MOUNT.findall(mountinfo):
        point = _ESCAPED.sub(lambda code: chr(int(code[1], 8)), escaped)
        is_below = path == point or path.startswith(point.rstrip("/") + "/")
        rank = number == f"{os.major(device)}:{os.minor(device)}", len(point)
        if is_below and rank >= best:
            best, found = rank, named(name)
    return found


def named(name: str) -> FileSystemKind:
    return FileSystemKind(name, name.removeprefix("fuse.") in NETWORK)


def from_statfs(answer: bytes) -> FileSystemKind:
    fields = _STATFS.unpack_from(answer)
    return FileSystemKind(
        fields[_TYPE_NAME].partition(b"\0")[0].decode("ascii", "replace"),
        not fields[_FLAGS] & _MNT_LOCAL,
    )


def locks_work(file: StrPath, fs: FileSystem) -> bool:
    """Return whether a lock on a file keeps other processes out; a lock that another process holds
    is an answer, too. Makes the file if it is missing. Raises OSError for other errors of the
    disk."""
    # As another process does it: copies of a descriptor would share the lock.
    with (
        contextlib.closing(Descriptor(fs.open(file, writing=True), locked=True)) as first,
        contextlib.closing(Descriptor(fs.open(file, writing=True), locked=True)) as second,
    ):
        try:
            return not fs.lock(first.fd) or not fs.lock(second.fd)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise


def _darwin(path: str) -> FileSystemKind:
    libc = ctypes.CDLL(None, use_errno=True)
    # Intel Macs keep the call with 32-bit inodes under the plain name.
    call = libc["statfs$INODE64" if os.uname().machine == "x86_64" else "statfs"]
    answer = ctypes.create_string_buffer(_STATFS.size)
    if call(os.fsencode(path), answer):
        raise OSError(ctypes.get_errno(), "statfs failed")
    return from_statfs(answer.raw)


_OURS = {BUDGET_FILE, KEEPER_FILE, LEDGER_FILE, PINS_FILE, REUSE_FILE, WRITES_FILE}
MOST_RECORDS = 256


class DirectoryGone(FileNotFoundError):
    """The directory is missing, or another one is in its place, and no cache is to be made there;
    `strerror` says why and what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.ENOENT, text)


class DiskGone(DirectoryGone):
    """The disk that the directory lay on is not mounted; it may be again."""


class KnownDirectory(NamedTuple):
    identity: str
    mount: str


class Root:
    """Makes the directory, unless it went away. Belongs to the thread that opens it; methods raise
    OSError as the disk does.

    `memory`: the state directory, None to remember nothing beyond this object. `parents`: missing
    parents are made too. `makes`: False to wait for another process to make it.
    """

    def __init__(
        self,
        directory: Path,
        fs: FileSystem,
        durability: Durability = "none",
        memory: Path | None = None,
        *,
        parents: bool = False,
    ) -> None:
        self._path = os.fspath(directory)
        self._fs = fs
        self._durability: Durability = durability
        self._parents = parents
        self.makes = True
        self._record = None if memory is None else record_path(memory, self._path)
        self._known: KnownDirectory | None = None
        self._device: int | None = None

    def have(self, *, deleted: bool) -> None:
        """Make the directory if it is missing and did not go away; raises DirectoryGone. `deleted`:
        the one that this process had was deleted, and neither renamed nor unmounted."""
        self.check(deleted=deleted)
        if not self._fs.exists(self._path):
            self._make()

    def check(self, *, deleted: bool = False) -> None:
        known = self._known or _remembered(self._record, self._fs)
        is_there = self._fs.exists(os.path.realpath(self._path))
        identity = read_identity(self._path, self._fs) if is_there else None
        if known is not None and identity != known.identity:
            self._check_mount(known)
        if not is_there:
            self._check_missing(deleted)
        elif identity is None and self._is_elsewhere(self._path):
            raise DiskGone(
                f"{self._path} is an empty directory of another disk: the cache is gone with its "
                "own, and is used again when that is mounted"
            )
        elif identity is None:
            refuse_foreign(self._path, self._fs)

    def unmounted(self) -> str:
        """Return why the directory is gone with its disk, "" when it is not; raises nothing."""
        try:
            self.check()
        except DiskGone as gone:
            return str(gone.strerror)
        except OSError:
            # A disk that fails is there.
            pass
        return ""

    def _check_missing(self, deleted: bool) -> None:
        above = os.path.dirname(os.path.realpath(self._path))
        missing = list[str]()
        while not self._fs.exists(above):
            missing, above = [*missing, above], os.path.dirname(above)
        if self._is_elsewhere(above):
            raise DiskGone(
                f"{self._path} is gone with its disk, and is used again when that is mounted"
            )
        if self._device is not None and not (deleted and self.makes):
            raise DirectoryGone(
                f"{self._path} is gone: it is used again when it has its name back, or when you "
                "make it (mkdir)"
            )
        if missing and not self._parents:
            raise DirectoryGone(
                f"{self._path} cannot be made, since {missing[-1]} is missing: mount its disk, or "
                f"make the directory above (mkdir -p {missing[0]})"
            )

    def _check_mount(self, known: KnownDirectory) -> None:
        mount = self._fs.mount_point(self._path)
        if known.mount != mount and known.mount.startswith(mount.rstrip("/") + "/"):
            forget = (
                ""
                if self._record is None
                else f", or rm {self._record}: the next start then makes a cache on the disk below"
            )
            raise DiskGone(
                f"{self._path} is gone with its disk: nothing is mounted at {known.mount}. It is "
                "used again when that is there. If it never will be, start with --hot-cache-only"
                f"{forget}"
            )

    def _is_elsewhere(self, path: str) -> bool:
        return self._device is not None and self._fs.identity(path)[0] != self._device

    def _make(self) -> None:
        above = Path(self._path).parents if self._parents else ()
        for path in [*reversed([one for one in above if not one.is_dir()]), Path(self._path)]:
            if self._fs.make_directory(path):
                # A parent that may be written to and not read is no reason to keep nothing.
                with contextlib.suppress(PermissionError):
                    self._fs.sync_directory(path.parent, self._durability)
        leave_out_of_time_machine(self._path)

    def remember(self, identity: str | None) -> None:
        """Note the directory that is open now for later, after a restart too if it has an
        identity."""
        self._device = self._fs.identity(self._path)[0]
        known = KnownDirectory(identity or "", self._fs.mount_point(self._path))
        if known == self._known:
            return
        self._known = known
        if identity and self._record is not None and known != _remembered(self._record, self._fs):
            # A state directory that cannot be written to costs the warning, and no more.
            with contextlib.suppress(OSError):
                self._write(self._record, known)

    def _write(self, record: str, known: KnownDirectory) -> None:
        if known.mount == "/":
            # That one is always there.
            self._fs.remove(record)
            return
        above = os.path.dirname(record)
        os.makedirs(above, 0o700, exist_ok=True)
        replace_file(
            record,
            json.dumps({"directory": self._path, **known._asdict()}).encode() + b"\n",
            self._fs,
        )
        for old in sorted(
            [entry for entry in self._fs.scan(above) if entry.is_file()],
            key=lambda entry: entry.stat().st_mtime_ns,
        )[:-MOST_RECORDS]:
            self._fs.remove(old.path)


def refuse_foreign(directory: StrPath, fs: FileSystem) -> None:
    """Raise DirectoryGone for a directory that holds other files and none of a cache's. Hidden
    files do not count, nor the entries of a new file system, nor a tag, which any cache may
    have."""
    names = {entry.name for entry in fs.scan(directory) if not entry.name.startswith(".")}
    others = names - {"lost+found", "CACHEDIR.TAG"}
    if others and names.isdisjoint(_OURS) and not any(map(digest_of, names)):
        raise DirectoryGone(
            f"{directory} holds other files ({min(others)}) and no cache: name a cold_dir that is "
            "empty or missing"
        )


def leave_out_of_time_machine(directory: str) -> None:
    """Have macOS leave a new directory out of its backups, on a thread of its own: raises nothing.
    It leaves out `~/Library/Caches` by itself."""
    caches = os.path.realpath(os.path.expanduser("~/Library/Caches"))
    if sys.platform == "darwin" and not os.path.realpath(directory).startswith(f"{caches}/"):
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=_exclude, args=(directory,), name="omlx-cache-tmutil").start()


def _exclude(directory: str) -> None:
    import subprocess  # only here: no other command waits for it

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            ["tmutil", "addexclusion", directory],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=10.0,  # seconds
            check=False,
        )


def record_path(memory: Path, directory: str) -> str:
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()
    return os.path.join(memory, "directories", f"{digest[:32]}.json")


def _remembered(record: str | None, fs: FileSystem) -> KnownDirectory | None:
    match {} if record is None else read_document(record, fs):
        case {"identity": str(identity), "mount": str(mount)}:
            return KnownDirectory(identity, mount)
    return None
