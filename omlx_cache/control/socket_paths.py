"""The runtime directory and the names of control sockets in it. Imports nothing heavy."""

import os
import re
import socket
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from omlx_cache.control.errors import ControlError
from omlx_cache.settings.names import RUNTIME_DIR_VARIABLE, ConfigError
from omlx_cache_storage.private import NotPrivate, claim

MAX_PATH_BYTES = 103
"""Of macOS, less the closing zero; Linux has four more."""

_STORE = re.compile(r"(\d{1,10})-(\d{1,4})\.sock")
SERVICE = re.compile(r"service-(\d{1,10})()\.sock")
_LONGEST_NAME = "4194304-99.sock"
_CS_DARWIN_USER_TEMP_DIR = 65537


class SocketName(NamedTuple):
    """Process id and number in the process."""

    pid: int
    number: int
    path: Path


def check_length(path: Path) -> Path:
    """Raises ValueError when no socket can have the path."""
    size = len(os.fsencode(path))
    if size > MAX_PATH_BYTES:
        raise ValueError(f"a socket path has at most {MAX_PATH_BYTES} bytes, this one has {size}")
    return path


def socket_name(directory: Path, pid: int, number: int | None) -> Path:
    """Without a number the process serves all stores and is none."""
    return directory / (f"service-{pid}.sock" if number is None else f"{pid}-{number}.sock")


def candidates(environ: Mapping[str, str] = os.environ, system: str = sys.platform) -> list[Path]:
    """Return where the runtime directory may be, best first. Touches no disk. Places too long for a
    socket are left out, except one that was asked for by name. Raises ConfigError for an empty
    variable."""
    explicit = environ.get(RUNTIME_DIR_VARIABLE)
    if explicit is not None:
        if not explicit.strip():
            raise ConfigError(f"{RUNTIME_DIR_VARIABLE}: got {explicit!r}; allowed: a directory")
        return [Path(os.path.abspath(os.path.expanduser(explicit)))]
    named = [environ.get("XDG_RUNTIME_DIR", "")]
    if system == "darwin":
        named.append(environ.get("TMPDIR", ""))
    found = [Path(place) / "omlx-cache" for place in named if os.path.isabs(place)]
    return [place for place in (*found, meeting_place()) if _fits(place)]


def meeting_place() -> Path:
    """Return the one directory that all processes of this user know, whatever their environment. A
    store that listens elsewhere leaves a link to its socket there."""
    return Path("/tmp") / f"omlx-cache-{os.geteuid()}"


def is_by_name(environ: Mapping[str, str] = os.environ) -> bool:
    return RUNTIME_DIR_VARIABLE in environ


def search_places(
    environ: Mapping[str, str] = os.environ, system: str = sys.platform
) -> list[Path]:
    """Return where a client looks for stores: where it would listen itself, and where this user's
    sessions with another environment listen (ssh, cron, launchd, systemd --user). Raises
    ConfigError as `candidates` does."""
    found = candidates(environ, system)
    session = _temporary_of_user() if system == "darwin" else f"/run/user/{os.geteuid()}"
    if session and not is_by_name(environ):
        found.append(Path(session) / "omlx-cache")
    return list(dict.fromkeys(found))


def _temporary_of_user() -> str:
    """Return what macOS gives a login session as TMPDIR, which cron and others lack."""
    with suppress(OSError, ValueError):
        return os.confstr(_CS_DARWIN_USER_TEMP_DIR) or ""
    return ""


def prepare(directory: Path) -> Path:
    """Make a runtime directory with mode 0700 and return it; raises ControlError when unusable. An
    existing one must be this user's and no link. A looser mode is tightened only where nothing else
    than control sockets lies in it: it might be a home directory."""
    if not _fits(directory):
        raise ControlError(
            "directory",
            f"{directory} is too long a path for control sockets: a socket's path has at most "
            f"{MAX_PATH_BYTES} bytes; set {RUNTIME_DIR_VARIABLE} to a shorter one",
        )
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        claim(
            directory,
            allowed=0o700,
            links=False,
            is_known=lambda name: _STORE.fullmatch(name) or SERVICE.fullmatch(name),
        )
    except NotPrivate as error:
        hint = f"set {RUNTIME_DIR_VARIABLE} to another one"
        raise ControlError("directory", f"{error.strerror}; or {hint}") from error
    except OSError as error:
        raise ControlError("directory", f"{directory}: {error.strerror}") from error
    return directory


def first_usable(places: list[Path]) -> Path:
    """Raises ControlError with all refusals."""
    refusals = []
    for place in places:
        try:
            return prepare(place)
        except ControlError as error:
            refusals.append(str(error))
    raise ControlError("directory", "no runtime directory: " + "; ".join(refusals))


def sockets_in(directory: Path, pattern: re.Pattern[str] = _STORE) -> list[SocketName]:
    """Return the control sockets of stores in a directory, or those of a `pattern`, by process id;
    none when it is unreadable. Only this user's sockets, and links to some, in this user's
    directory count: others could be traps. The target of a link may be gone."""
    if why_unseen(directory):
        return []
    with suppress(OSError), os.scandir(directory) as entries:
        named = [(pattern.fullmatch(entry.name), entry) for entry in entries]
        return sorted(
            SocketName(int(match[1]), int(match[2] or 0), Path(entry.path))
            for match, entry in named
            if match is not None and _is_own_socket(entry)
        )
    return []


def _is_own_socket(entry: os.DirEntry[str]) -> bool:
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_IFMT(info.st_mode) in (stat.S_IFSOCK, stat.S_IFLNK) and (
        info.st_uid == os.geteuid()
    )


def why_unseen(directory: Path) -> str:
    """Return in words why `sockets_in` cannot look into a directory, empty when it can. A missing
    directory is no trouble: no store has made it yet."""
    try:
        if directory.lstat().st_uid != os.geteuid():
            return "belongs to another user"
        os.scandir(directory).close()
    except FileNotFoundError:
        return ""
    except NotADirectoryError:
        return "is not a directory"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def is_listening(path: Path, timeout: float = 1.0) -> bool:
    """When that is unknown, assume that a process accepts connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            # So many ask that one more has to wait (on Linux a full backlog fails at once), or a
            # permission is lacking.
            return True
        return True


def _fits(directory: Path) -> bool:
    return len(os.fsencode(directory / _LONGEST_NAME)) <= MAX_PATH_BYTES
