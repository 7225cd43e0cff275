"""What this machine offers, whether it saves its battery, where files lie on it, and what a file
with a secret says. Imports
nothing heavy: the command line needs it too."""

import errno
import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from omlx_cache.settings.names import COLD_DIR_VARIABLE, ConfigError
from omlx_cache_storage.private import trouble

AUTO = "auto"
MOST_BYTES = 4096
IN_FILE = "file:"
"""How a value begins that names the file with the secret: `file:PATH`."""
PMSET_SECONDS = 2.0
_UNKNOWN_MEMORY = 8 * 2**30
_ROOT = Path("/")


class DiskSpace(NamedTuple):
    """A file system's size and what an unprivileged user may still take, in bytes."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The values that defaults are derived from. `limit_bytes` is the control group's memory limit,
    None without one. `disk` answers for the file system that holds, or will hold, a path."""

    system: str
    physical_bytes: int
    limit_bytes: int | None
    home: Path
    default_cold_dir: Path
    disk: Callable[[Path], DiskSpace] = field(compare=False)
    state_dir: Path | None = None

    @property
    def memory_bytes(self) -> int:
        if self.limit_bytes is None:
            return self.physical_bytes
        return min(self.physical_bytes, self.limit_bytes)

    @property
    def memory_name(self) -> str:
        limited = self.limit_bytes is not None and self.limit_bytes < self.physical_bytes
        return "the control group's memory limit" if limited else "physical memory"


class Disks(dict[Path, DiskSpace]):
    """Answers for a path's file system; asks once for each path, so that answers agree, and again
    for one that was popped: another disk may be mounted by now."""

    def __missing__(self, path: Path) -> DiskSpace:
        return self.setdefault(path, disk_space(path))

    __call__ = dict.__getitem__


def probe(environ: Mapping[str, str] = os.environ) -> Machine:
    """Return this machine. A path's disk is read once and then remembered."""
    system = "Darwin" if sys.platform == "darwin" else "Linux"
    home = Path.home()
    return Machine(
        system=system,
        physical_bytes=physical_memory(),
        limit_bytes=cgroup_limit() if system == "Linux" else None,
        home=home,
        default_cold_dir=default_cold_dir(system, environ, home),
        disk=Disks(),
        state_dir=state_dir(system, environ, home),
    )


def physical_memory() -> int:
    """Return the installed memory in bytes, or a cautious 8 GiB where the system does not say."""
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return _UNKNOWN_MEMORY
    return pages * size if pages > 0 and size > 0 else _UNKNOWN_MEMORY


def disk_space(path: Path) -> DiskSpace:
    """Return the space of the file system that holds `path` or its nearest readable ancestor."""
    for place in (path, *path.parents):
        try:
            info = os.statvfs(place)
        except OSError:
            continue
        return DiskSpace(info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize)
    return DiskSpace(0, 0)


def directory_trouble(path: Path) -> str:
    """Return in words why files cannot be kept in `path`, empty when they can. Creates nothing. A
    directory that is missing is fine where it can be made; so are missing parents, which may come
    with their disk."""
    for place in (path, *path.parents):
        try:
            info = place.stat()
        except FileNotFoundError:
            if place.is_symlink():
                return f"{place} is a link to what is not there"
            continue
        except NotADirectoryError:
            # An ancestor is a file; that one is the trouble to name.
            continue
        except OSError as error:
            return f"{place}: {error.strerror}"
        if not stat.S_ISDIR(info.st_mode):
            return f"{place} is not a directory"
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            try:
                is_read_only = os.statvfs(place).f_flag & os.ST_RDONLY
            except OSError as error:
                return f"{place}: {error.strerror}"
            return f"{place}: {os.strerror(errno.EROFS if is_read_only else errno.EACCES)}"
        # An empty one of this user's is made private when a store opens it, and one above it is not
        # looked into.
        found = "" if place != path else trouble(place, info)
        return found if found and (info.st_uid != os.geteuid() or os.listdir(place)) else ""
    return f"{path} has no place"


def cgroup_limit(root: Path = _ROOT) -> int | None:
    """Return the smallest memory limit of this process's control groups, None without any: each
    ancestor limits as well, up to the mount."""
    limits = (read_limit(path) for path in memory_groups(root))
    return min((limit for limit in limits if limit is not None), default=None)


def memory_groups(root: Path = _ROOT) -> list[Path]:
    """Return where control groups of versions 1 and 2 may say limits; not all of the files
    exist."""
    lines = text_of(root / "proc/self/cgroup").splitlines()
    return [path for line in lines for path in _limit_files(line, root / "sys/fs/cgroup")]


def _limit_files(line: str, mount: Path) -> list[Path]:
    number, _, rest = line.partition(":")
    controllers, _, group = rest.partition(":")
    if number == "0" and not controllers:
        base, name = mount, "memory.max"
    elif "memory" in controllers.split(","):
        base, name = mount / "memory", "memory.limit_in_bytes"
    else:
        return []
    relative = Path(group.lstrip("/"))
    # Inside a container the listed path may be the host's; the mount itself is then the group.
    places = {base, base / relative, *(base / parent for parent in relative.parents)}
    return [place / name for place in places]


def read_limit(path: Path) -> int | None:
    text = text_of(path).strip()
    # Version 1 writes "no limit" as a number near 2^63, version 2 as the word "max".
    return int(text) if text.isdigit() and int(text) < 2**60 else None


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def is_auto(value: object) -> bool:
    return isinstance(value, str) and value.strip().lower() == AUTO


def default_cold_dir(system: str, environ: Mapping[str, str], home: Path) -> Path:
    return _place(system, environ, home, "Caches", "XDG_CACHE_HOME", ".cache")


def state_dir(system: str, environ: Mapping[str, str], home: Path) -> Path:
    """Return where this user's programs remember what outlives them."""
    return _place(system, environ, home, "Application Support", "XDG_STATE_HOME", ".local/state")


def _place(
    system: str, environ: Mapping[str, str], home: Path, library: str, variable: str, usual: str
) -> Path:
    if system == "Darwin":
        return home / "Library" / library / "omlx-cache"
    # The XDG specification demands that only absolute paths count.
    xdg = environ.get(variable, "")
    return (Path(xdg) if os.path.isabs(xdg) else home / usual) / "omlx-cache"


def expand(text: str | os.PathLike[str], home: Path) -> Path:
    """Return an absolute path, with `~` for `home`; raises ValueError for an empty one."""
    raw = os.fspath(text) if isinstance(text, str | os.PathLike) else ""
    if not raw.strip() or "\0" in raw:
        raise ValueError("not a path")
    if raw == "~" or raw.startswith("~/"):
        return home / raw[2:]
    return Path(os.path.abspath(os.path.expanduser(raw)))


def cold_dir_from_environment(system: str, environ: Mapping[str, str], home: Path) -> Path:
    """Return the cold directory that `CacheSettings()` would choose."""
    given = environ.get(COLD_DIR_VARIABLE)
    if given is None or is_auto(given):
        return default_cold_dir(system, environ, home)
    return expand(given, home)


def names_file(value: object) -> bool:
    """Tell whether a value names a file with the secret and is none itself: `file:PATH`, in
    whatever case, since a name that is taken for the secret is one that anybody can guess."""
    return isinstance(value, str) and value.lower().startswith(IN_FILE)


def read_secret(path: Path, setting: str) -> str:
    """Return the first line of the file that a setting names; raises ConfigError where there is
    none, or where the file is not this user's alone."""
    try:
        # A pipe that nobody writes to would be waited for.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(fd).st_mode
            raw = os.read(fd, MOST_BYTES)
        finally:
            os.close(fd)
        secret = raw.decode().strip().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{setting}: {path}: {why}") from error
    if mode & 0o077:
        raise ConfigError(f"{setting}: others may read {path}; chmod 600 {path}")
    if not secret:
        raise ConfigError(f"{setting}: {path} is empty; its first line counts")
    return secret


def _pmset(*arguments: str) -> str:
    import subprocess  # only here: the command line starts without it

    return subprocess.run(
        ["/usr/bin/pmset", "-g", *arguments],
        capture_output=True,
        text=True,
        timeout=PMSET_SECONDS,
    ).stdout


def saves_power(
    root: Path = _ROOT,
    platform: str = sys.platform,
    pmset: Callable[..., str] = _pmset,
) -> bool:
    """Return whether it runs on its battery, or on macOS in Low Power Mode; False when the platform
    does not say. Waits for a process on macOS."""
    from subprocess import SubprocessError  # only here: the command line starts without it

    try:
        if platform == "darwin":
            return "Battery Power" in pmset("batt") or any(
                line.split() == ["lowpowermode", "1"] for line in pmset().splitlines()
            )
        supplies = root / "sys/class/power_supply"
        batteries = [one for one in supplies.glob("*") if text_of(one / "type") == "Battery\n"]
        # A wireless mouse has one too.
        return any(
            text_of(one / "status") == "Discharging\n" and text_of(one / "scope") != "Device\n"
            for one in batteries
        )
    except (OSError, SubprocessError):
        return False
