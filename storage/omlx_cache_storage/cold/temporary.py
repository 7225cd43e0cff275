"""Names of files being written: they tell their writer, so that leftovers are known as such."""

import contextlib
import itertools
import os
import secrets
import time
import weakref

from omlx_cache_storage.cold.disk import Durability, FileSystem, StrPath
from omlx_cache_storage.format.names import TEMPORARY_PREFIX
from omlx_cache_storage.private import is_running

ABANDONED_SECONDS = 3600.0
"""No write takes an hour: an older temporary file has lost its writer, whoever has the pid now."""

_writers: "weakref.WeakValueDictionary[str, TemporaryNames]" = weakref.WeakValueDictionary()
"""The tokens of this process's tiers, for as long as somebody may write with them."""


class TemporaryNames:
    """Gives names for temporary files that no other writer has, and replaces small files by way of
    them. Any thread may call."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(4)
        self._sequence = itertools.count()
        _writers[self._token] = self

    def new(self, directory: str) -> str:
        """Return a fresh path in a directory."""
        number = next(self._sequence)
        return os.path.join(directory, f"{TEMPORARY_PREFIX}{os.getpid()}-{self._token}-{number}")

    def replace(
        self, path: StrPath, raw: bytes, fs: FileSystem, durability: Durability = "none"
    ) -> None:
        """Give a small file another content, whole or not at all; raises OSError."""
        temporary = self.new(os.path.dirname(path))
        try:
            fs.write(temporary, [raw], durability)
            fs.publish(temporary, path)
        except BaseException:
            fs.remove(temporary)
            raise


def remove_leftovers(directory: str, fs: FileSystem) -> None:
    """Delete the temporary files of dead writers that lie in a directory itself; raises nothing."""
    with contextlib.suppress(OSError):
        for entry in fs.scan(directory):
            if entry.name.startswith(TEMPORARY_PREFIX):
                info = entry.stat(follow_symlinks=False)
                if is_leftover(entry.name, info.st_mtime_ns):
                    fs.remove(entry.path)


def remove_temporaries(directory: str, like: str, fs: FileSystem) -> None:
    """Delete what the writer of a temporary file left in a directory, but what it is writing now;
    raises nothing."""
    writer = like.rpartition("-")[0] + "-"
    with contextlib.suppress(OSError):
        for entry in list(fs.scan(directory)):
            if entry.name.startswith(writer) and not fs.is_being_written(entry.path):
                fs.remove(entry.path)


def is_leftover(file: str, mtime_ns: int) -> bool:
    """True when the writer of a temporary file is gone, as its name and age tell."""
    if time.time() - mtime_ns / 1e9 > ABANDONED_SECONDS:
        return True
    parts = file.removeprefix(TEMPORARY_PREFIX).split("-")
    try:
        pid = int(parts[0])
    except ValueError:
        return True
    if pid == os.getpid():
        # After a restart in a container the dead process had this very pid.
        return len(parts) < 2 or parts[1] not in _writers
    return not is_running(pid)
