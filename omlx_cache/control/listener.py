"""A listening Unix socket that owns its file: made privately, removed once, never another's."""

import contextlib
import errno
import os
import socket
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from omlx_cache.control.errors import ControlError
from omlx_cache.control.paths import (
    check_length,
    service_name,
    services_in,
    socket_name,
    sockets_in,
)
from omlx_cache_storage.private import is_running

_BACKLOG = 64
_PROBE_SECONDS = 0.2
_MOST_LINKS = 100

# Between `bind` and `listen` a socket looks abandoned; within a process this lock hides that.
_binding = threading.Lock()


class Identity(NamedTuple):
    """Which file a listener made, and in which process."""

    path: Path
    device: int
    inode: int
    pid: int


class Listener(NamedTuple):
    """A listening socket, the identity of its file, and those of links to it."""

    socket: socket.socket
    identity: Identity
    links: tuple[Identity, ...] = ()


def listen_at(path: Path) -> Listener:
    """Return a listener at `path` with mode 0600; raises ControlError when it is taken.

    An abandoned socket of this user's at that path is replaced; any other file is left alone.
    """
    try:
        check_length(path)
    except ValueError as error:
        raise ControlError("path", f"{path}: {error}") from error
    with _binding:
        if _remove_abandoned(path):
            raise ControlError("in_use", f"{path}: another store listens there")
        try:
            return _bind(path)
        except OSError as error:
            raise ControlError("path", f"{path}: {error.strerror}") from error


def listen_in(directory: Path) -> Listener:
    """Return a listener at a free `<pid>-<n>.sock` of a runtime directory, made with `prepare`.

    Sockets that dead processes left there are removed first.
    """
    remove_stale(directory)
    pid = os.getpid()
    for number in range(10_000):
        path = socket_name(directory, pid, number)
        try:
            with _binding:
                return _bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ControlError("path", f"{path}: {error.strerror}") from error
    raise ControlError("path", f"{directory}: no free socket name for process {pid}")


def listen_as_service(directory: Path) -> Listener:
    """Return a listener at `service-<pid>.sock` of a runtime directory, made with `prepare`; else
    as `listen_in`."""
    remove_stale(directory)
    return listen_at(service_name(directory, os.getpid()))


def linked(listener: Listener, directory: Path) -> Listener:
    """Return a listener that a link in a runtime directory, made with `prepare`, leads to.

    Links of dead processes are removed first. Without a link when none can be made: the store is
    then found from its own session only.
    """
    remove_stale(directory)
    target = listener.identity.path
    pid = listener.identity.pid
    names = [socket_name(directory, pid, number) for number in range(_MOST_LINKS)]
    if target.name == service_name(directory, pid).name:
        names = [service_name(directory, pid)]
    for path in names:
        try:
            path.symlink_to(target)
            info = path.lstat()
        except FileExistsError:
            continue
        except OSError:
            break
        return listener._replace(links=(Identity(path, info.st_dev, info.st_ino, pid),))
    return listener


def remove_stale(directory: Path) -> list[Path]:
    """Remove and return the control sockets of dead processes on which nobody listens.

    A live process is given the benefit of the doubt: it may be about to listen. A dead one may
    be alive in another container that shares the directory, so its socket must refuse as well.
    """
    removed = []
    with _binding:
        for name in (*sockets_in(directory), *services_in(directory)):
            own = name.pid == os.getpid()
            if (own or not is_running(name.pid)) and not _answers(name.path):
                name.path.unlink(missing_ok=True)
                removed.append(name.path)
    return removed


def remove_own(identity: Identity) -> None:
    """Remove a listener's file if this process made it and it is still that file."""
    if os.getpid() != identity.pid:
        return
    with contextlib.suppress(OSError):
        info = identity.path.lstat()
        if (info.st_dev, info.st_ino) == (identity.device, identity.inode):
            identity.path.unlink()


def remove_all(identities: Iterable[Identity]) -> None:
    """Remove a listener's file and links, as `remove_own` does."""
    for identity in identities:
        remove_own(identity)


def _bind(path: Path) -> Listener:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(os.fspath(path))
        # Nobody can connect before `listen`, so the mode is right before it matters.
        path.chmod(0o600)
        info = path.lstat()
        sock.setblocking(False)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return Listener(sock, Identity(path, info.st_dev, info.st_ino, os.getpid()))


def _remove_abandoned(path: Path) -> bool:
    """Remove an abandoned socket of this user's; return True when somebody listens on it."""
    try:
        info = path.lstat()
    except OSError:
        return False
    if not stat.S_ISSOCK(info.st_mode):
        return False
    if _answers(path):
        return True
    if info.st_uid == os.geteuid():
        path.unlink(missing_ok=True)
    return False


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(_PROBE_SECONDS)
        try:
            sock.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # A full backlog, or no permission: somebody is there.
            return True
        return True
