"""A file system of its own process: stopped by SIGSTOP it hangs as a network mount does.

`python fuse_server.py PLACE BACKING` mounts PLACE, shows BACKING in it, says `ready` and answers
until it is killed, which ends every call that hangs. One thread; the kernel caches nothing. It has
no FLUSH, as most have none: the kernel itself lets no process end that waits for one. Needs root,
Linux and /dev/fuse.
"""

import ctypes
import errno
import os
import select
import signal
import struct
import sys
from collections.abc import Callable

_IN, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_MOST = 128 * 1024
_DIRECT_IO = 1
_MODE, _SIZE, _ATIME, _MTIME, _HANDLE = 1, 8, 16, 32, 64


class Server:
    """Answers for the files below `backing`. Nodes are numbers that stand for paths."""

    def __init__(self, device: int, backing: str) -> None:
        self._device = device
        self._paths: dict[int, str] = {1: backing}
        self._nodes: dict[str, int] = {backing: 1}
        self._next = 2
        self._open: dict[int, int] = {}
        self._answers: dict[int, Callable[[int, bytes], bytes | None]] = {
            1: self._lookup,
            2: self._nothing,
            3: self._getattr,
            4: self._setattr,
            9: self._mkdir,
            10: lambda node, body: self._remove(node, body, os.unlink),
            11: lambda node, body: self._remove(node, body, os.rmdir),
            12: lambda node, body: self._rename(node, body, 8),
            14: self._open_file,
            15: self._read,
            16: self._write,
            17: self._statfs,
            18: self._release,
            20: self._fsync,
            26: self._init,
            27: lambda node, body: struct.pack("<QII", 0, 0, 0),
            28: self._readdir,
            29: lambda node, body: b"",
            30: lambda node, body: b"",
            34: lambda node, body: b"",
            35: self._create,
            36: self._nothing,
            42: self._nothing,
            45: lambda node, body: self._rename(node, body, 16),
        }

    def serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._device, sys.stdin], [], [])
            if sys.stdin in ready:
                # Between two requests: who waits for one that was read cannot even be killed.
                print("stopped", flush=True)
                signal.pause()
            request = os.read(self._device, _MOST + 65536)
            length, opcode, unique, node, *_ = _IN.unpack_from(request)
            code, reply = 0, None
            try:
                answer = self._answers.get(opcode)
                if answer is None:
                    raise OSError(errno.ENOSYS, "not here")
                reply = answer(node, request[_IN.size : length])
                if reply is None:
                    continue
            except OSError as error:
                code, reply = -(error.errno or errno.EIO), b""
            os.write(self._device, _OUT.pack(_OUT.size + len(reply), code, unique) + reply)

    def _nothing(self, node: int, body: bytes) -> bytes | None:
        return None

    def _init(self, node: int, body: bytes) -> bytes:
        _major, _minor, ahead, _flags = struct.unpack_from("<4I", body)
        return struct.pack("<4I2H2I2HI7I", 7, 31, ahead, 1 << 5, 16, 12, _MOST, 1, 0, 0, *[0] * 8)

    def _path(self, node: int) -> str:
        if node not in self._paths:
            raise OSError(errno.ENOENT, "gone")
        return self._paths[node]

    def _child(self, node: int, name: bytes) -> str:
        return os.path.join(self._path(node), os.fsdecode(name.split(b"\0")[0]))

    def _attributes(self, info: os.stat_result) -> bytes:
        times = (info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns)
        return _ATTR.pack(
            info.st_ino, info.st_size, info.st_blocks,
            *(at // 10**9 for at in times), *(at % 10**9 for at in times),
            info.st_mode, info.st_nlink, info.st_uid, info.st_gid, 0, 4096, 0,
        )  # fmt: skip

    def _entry(self, path: str) -> bytes:
        info = os.lstat(path)
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = self._next
            self._paths[node] = path
            self._next += 1
        return struct.pack("<4Q2I", node, 0, 0, 0, 0, 0) + self._attributes(info)

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body))

    def _info(self, node: int) -> os.stat_result:
        handle = self._open.get(node)
        return os.lstat(self._path(node)) if node in self._paths else os.fstat(handle or -1)

    def _getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attributes(self._info(node))

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, handle, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode = (
            struct.unpack_from("<IIQQQQQQIIII", body)
        )
        path = self._path(node)
        if valid & _MODE:
            os.chmod(path, mode & 0o7777)
        if valid & _SIZE:
            os.truncate(handle if valid & _HANDLE else path, size)
        if valid & (_ATIME | _MTIME):
            known = os.lstat(path)
            used = atime * 10**9 + atime_ns if valid & _ATIME else known.st_atime_ns
            changed = mtime * 10**9 + mtime_ns if valid & _MTIME else known.st_mtime_ns
            os.utime(path, ns=(used, changed))
        return self._getattr(node, body)

    def _mkdir(self, node: int, body: bytes) -> bytes:
        mode, _umask = struct.unpack_from("<II", body)
        path = self._child(node, body[8:])
        os.mkdir(path, mode)
        return self._entry(path)

    def _forget(self, path: str) -> None:
        node = self._nodes.pop(path, None)
        if node is not None:
            self._paths.pop(node, None)

    def _remove(self, node: int, body: bytes, remove: Callable[[str], None]) -> bytes:
        path = self._child(node, body)
        remove(path)
        self._forget(path)
        return b""

    def _rename(self, node: int, body: bytes, start: int) -> bytes:
        (to,) = struct.unpack_from("<Q", body)
        old, new, _ = body[start:].split(b"\0", 2)
        before, after = self._child(node, old), self._child(to, new)
        os.rename(before, after)
        self._forget(after)
        moved = self._nodes.pop(before, None)
        if moved is not None:
            self._nodes[after] = moved
            self._paths[moved] = after
        return b""

    def _opened(self, node: int, handle: int) -> bytes:
        self._open[node] = handle
        return struct.pack("<QII", handle, _DIRECT_IO, 0)

    def _open_file(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        asked = flags & (os.O_ACCMODE | os.O_TRUNC | os.O_APPEND)
        return self._opened(node, os.open(self._path(node), asked))

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode, _umask, _ = struct.unpack_from("<4I", body)
        path = self._child(node, body[16:])
        asked = flags & (os.O_ACCMODE | os.O_TRUNC | os.O_EXCL)
        handle = os.open(path, asked | os.O_CREAT, mode)
        entry = self._entry(path)
        return entry + self._opened(self._nodes[path], handle)

    def _read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, offset)

    def _write(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def _release(self, node: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        os.close(handle)
        if self._open.get(node) == handle:
            del self._open[node]
        return b""

    def _fsync(self, node: int, body: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", body)[0])
        return b""

    def _statfs(self, node: int, body: bytes) -> bytes:
        info = os.statvfs(self._paths[1])
        return struct.pack(
            "<5Q4I6I", info.f_blocks, info.f_bfree, info.f_bavail, info.f_files, info.f_ffree,
            info.f_bsize, 255, info.f_frsize, 0, *[0] * 6,
        )  # fmt: skip

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        found, names = b"", sorted(os.listdir(self._path(node)))
        for number, name in enumerate(names[offset:], offset + 1):
            raw = os.fsencode(name)
            entry = struct.pack("<QQII", number, number, len(raw), 0) + raw
            entry += bytes(-len(entry) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found


def main(place: str, backing: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"omlx-cache-test", place.encode(), b"fuse", 6, options.encode()):
        raise OSError(ctypes.get_errno(), "cannot mount")
    print("ready", flush=True)
    Server(device, backing).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
