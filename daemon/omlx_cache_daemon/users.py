"""Who uses a cold directory: by what stores and services say, and by the lock that users hold."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omlx_cache.control.errors import ControlError
from omlx_cache_daemon.errors import CommandError, NobodyThere
from omlx_cache_daemon.replies import Map, as_map
from omlx_cache_daemon.source import cold_dir_of
from omlx_cache_daemon.stores import RunningStore, running, services
from omlx_cache_daemon.titles import title
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.ledger import SMALLEST_BYTES, Ledger

_ASK_SECONDS = 5.0
_LOCKS = "/proc/locks"


def users_of(directory: Path) -> list[str]:
    """Return those who say that they use a directory, or do not answer and may."""
    real = os.path.realpath(directory)
    found = []
    for kind, known in (("store", running()), ("service", services())):
        for one in known:
            try:
                info = as_map(one.client(_ASK_SECONDS).call("ps"))
            except (NobodyThere, ControlError, CommandError) as error:
                found.append(f"process {one.pid}, which may use it and does not answer: {error}")
                continue
            if cold_dir_of(info) == real:
                found.append(_named(kind, one, info))
    return found


@contextmanager
def kept_from_others(directory: Path) -> Iterator[None]:
    """Keep everybody from a directory that nobody uses; raises CommandError, which names the users.

    A store that opens it meanwhile works from memory, and tries again later.
    """
    fs = FileSystem()
    fd = fs.open_directory(directory)
    try:
        users = users_of(directory)
        if not fs.try_lock(fd):
            users = users or [f"process {pid}" for pid in lock_holders(directory)]
            users = users or ["a process without a control socket"]
        if users:
            lines = "".join(f"\n  {user}" for user in users)
            raise CommandError(f"{directory} is in use: stop these first{lines}")
        if not fs.is_writable(directory):
            yield
            return
        ledger = Ledger(directory, fs)
        ledger.open(SMALLEST_BYTES)
        try:
            with ledger.held():
                yield
        finally:
            ledger.close()
    finally:
        fs.close(fd)


def lock_holders(directory: Path) -> list[int]:
    """Return the processes that hold a directory's lock, as far as the system tells."""
    try:
        info = os.stat(directory)
        with open(_LOCKS, encoding="ascii") as locks:
            lines = locks.read().splitlines()
    except (OSError, ValueError):
        return []
    place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    found = set()
    for fields in map(str.split, lines):
        if "FLOCK" in fields and place in fields:
            pid = fields[fields.index(place) - 1]
            found.add(int(pid) if pid.isdecimal() else 0)
    return sorted(found - {0, os.getpid()})


def _named(kind: str, one: RunningStore, info: Map) -> str:
    shown = title(info)
    return f"process {one.pid}: {kind if kind == 'service' else shown or kind}"
