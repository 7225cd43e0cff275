"""Sockets to listen on. One of Unix owns its file: made privately, removed once, never another's;
and the kernel says who is at its other end."""

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from omlx_cache.control.errors import ControlError
from omlx_cache.control.socket_paths import (
    SERVICE,
    candidates,
    check_length,
    first_usable,
    is_by_name,
    is_listening,
    meeting_place,
    prepare,
    socket_name,
    sockets_in,
)
from omlx_cache_storage.private import is_running

_log = logging.getLogger(__name__)

_PROBE_SECONDS = 0.2
_MOST_NAMES = 1000
_LINUX_UCRED = struct.Struct("3i")
_XUCRED_SIZE = 76
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1

# Between `bind` and `listen` a socket looks abandoned; within a process this lock hides that.
_binding = threading.Lock()


class Listener(NamedTuple):
    """`files` are its own and links to that as they were made, its own first; none for a port's."""

    socket: socket.socket
    files: Mapping[Path, os.stat_result]


def bind(host: str, port: int, hint: str) -> socket.socket:
    """Return a socket with an address, port 0 for any free one, which does not listen yet. Raises
    OSError, with the hint for an address that is taken, or a port that only root may use."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        bound = socket.socket(found[0][0], socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(found[0][4])
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        more = hint if getattr(error, "errno", 0) in (errno.EADDRINUSE, errno.EACCES) else ""
        raise OSError(f"cannot listen on {host}, port {port}: {why}{more}") from error
    return bound


def listen_at(path: Path) -> Listener:
    """Return a listener with mode 0600; raises ControlError when the path is taken. An abandoned
    socket of this user's there is replaced; any other file stays."""
    try:
        check_length(path)
    except ValueError as error:
        raise ControlError("path", f"{path}: {error}") from error
    with _binding:
        if _remove_abandoned(path):
            raise ControlError("in_use", f"{path}: another store listens there")
        return _bind(path)


def listen_in(directory: Path, *, is_service: bool = False) -> Listener:
    """Return a listener at a free name of this process's in a runtime directory that `prepare`
    made; sockets of dead processes there are removed first."""
    remove_stale(directory)
    with _binding:
        return _bind(_free_name(directory, is_service))


def listen_for_all_sessions(*, is_service: bool = False) -> Listener:
    """Return a listener that clients of this user find from any session; raises ControlError. Where
    they look in another directory, a link leads to it; when none can be made, the store is found
    from its own session only."""
    directory, meeting = first_usable(candidates()), meeting_place()
    listener = listen_in(directory, is_service=is_service)
    if is_by_name() or directory == meeting:
        return listener
    (own,) = listener.files
    try:
        remove_stale(prepare(meeting))
        with _binding:
            link = _free_name(meeting, is_service)
            link.symlink_to(own)
            return listener._replace(files={**listener.files, link: link.lstat()})
    except (ControlError, OSError) as error:
        _log.debug("control socket: not found from other sessions: %s", error)
    return listener


def _free_name(directory: Path, is_service: bool) -> Path:
    """Raises ControlError."""
    pid, numbers = os.getpid(), [None] if is_service else range(_MOST_NAMES)
    for path in (socket_name(directory, pid, number) for number in numbers):
        if not os.path.lexists(path):
            return path
    raise ControlError("path", f"{directory}: no free socket name for process {pid}")


def remove_stale(directory: Path) -> list[Path]:
    """Remove and return the control sockets of dead processes on which no process listens. A live
    process may be about to listen. A dead one may be alive in another container that shares the
    directory, so its socket must refuse as well."""
    removed = []
    with _binding:
        for name in (*sockets_in(directory), *sockets_in(directory, SERVICE)):
            own = name.pid == os.getpid()
            if (own or not is_running(name.pid)) and not is_listening(name.path, _PROBE_SECONDS):
                name.path.unlink(missing_ok=True)
                removed.append(name.path)
    return removed


def remove_all(files: Mapping[Path, os.stat_result]) -> None:
    for path, made in files.items():
        with contextlib.suppress(OSError):
            if os.path.samestat(path.lstat(), made):
                path.unlink()


def _bind(path: Path) -> Listener:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(os.fspath(path))
        # No client can connect before `listen`, so the mode is right before it matters.
        path.chmod(0o600)
        sock.setblocking(False)
        sock.listen()
        return Listener(sock, {path: path.lstat()})
    except OSError as error:
        sock.close()
        raise ControlError("path", f"{path}: {error.strerror}") from error


def _remove_abandoned(path: Path) -> bool:
    """Remove an abandoned socket of this user's; return True when a process listens on it."""
    with contextlib.suppress(OSError):
        info = path.lstat()
        if stat.S_ISSOCK(info.st_mode):
            if is_listening(path, _PROBE_SECONDS):
                return True
            if info.st_uid == os.geteuid():
                path.unlink(missing_ok=True)
    return False


def peer_uid(connection: socket.socket) -> int:
    """Return the peer's effective user id; raises OSError when the kernel does not say."""
    if sys.platform == "darwin":
        return parse_xucred(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_SIZE))
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _LINUX_UCRED.size)
    _, uid, _ = _LINUX_UCRED.unpack(raw)
    return int(uid)


def parse_xucred(raw: bytes) -> int:
    """Return the uid of macOS's `struct xucred`: version, uid, groups. Raises OSError."""
    if len(raw) < 8:
        raise OSError("LOCAL_PEERCRED gave no credentials")
    version, uid = struct.unpack_from("=II", raw)
    if version != 0:
        raise OSError(f"LOCAL_PEERCRED gave credentials of unknown version {version}")
    return int(uid)
