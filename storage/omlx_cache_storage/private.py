"""Checks of a directory's owner, and of who may change it: nothing is trusted that another user
could have put there. Also whether another process of this machine runs."""

import errno
import os
import stat
from collections.abc import Callable

READABLE = 0o755
"""The loosest mode of a directory in which no other user can plant files."""


class NotPrivate(PermissionError):
    """A directory is another user's, or others may change it; `strerror` says what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(errno.EPERM, text)


def trouble(path: str | os.PathLike[str], info: os.stat_result, *, allowed: int = READABLE) -> str:
    """Return in words why a directory is not private, empty when it is; `allowed` is its loosest
    mode."""
    if info.st_uid != os.geteuid():
        return (
            f"{path} is not a directory of this user's: it belongs to user {info.st_uid}, "
            f"and this is user {os.geteuid()}: make it this user's (chown {os.geteuid()}) "
            "or name another"
        )
    if stat.S_IMODE(info.st_mode) & 0o777 & ~allowed:
        what = "be changed" if stat.S_IMODE(info.st_mode) & 0o777 & ~READABLE else "be looked into"
        return (
            f"{path} may {what} by other users (mode {stat.S_IMODE(info.st_mode):04o}): make it "
            "private (chmod 700)"
        )
    return ""


def claim(
    directory: str | os.PathLike[str],
    *,
    allowed: int = READABLE,
    links: bool = True,
    is_known: Callable[[str], object] = lambda name: False,
) -> None:
    """Make sure that a directory is this user's alone to write to; raises NotPrivate, OSError.

    A looser mode than `allowed` is tightened to 0700 where nothing lies in the directory but
    entries that `is_known` accepts: it might be a home directory. With `links` it may be reached by
    a link of this user's, or of root's.
    """
    named = os.lstat(directory)
    if stat.S_ISLNK(named.st_mode) and (not links or named.st_uid not in (0, os.geteuid())):
        raise NotPrivate(f"{directory} is not a directory of this user's but a link")
    info = os.stat(directory)
    if not stat.S_ISDIR(info.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a directory: name another", str(directory))
    found = trouble(directory, info, allowed=allowed)
    if not found:
        return
    if info.st_uid != os.geteuid():
        raise NotPrivate(found)
    others = [name for name in os.listdir(directory) if not is_known(name)]
    if others:
        raise NotPrivate(f"{found}; it holds other files ({others[0]})")
    os.chmod(directory, 0o700)
    if trouble(directory, os.stat(directory), allowed=allowed):
        raise NotPrivate(f"{found}, or choose a disk that keeps modes: this one does not")


def is_running(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
