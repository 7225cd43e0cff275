"""Where files lie by default. Reads no disk and imports nothing heavy: the CLI needs it too."""

import os
from collections.abc import Mapping
from pathlib import Path

PREFIX = "OMLX_CACHE_"
COLD_DIR_VARIABLE = PREFIX + "COLD_DIR"
SOCKET_VARIABLE = PREFIX + "SOCKET"
RUNTIME_DIR_VARIABLE = PREFIX + "RUNTIME_DIR"
AUTO = "auto"


def is_auto(value: object) -> bool:
    """Tell whether a value asks for the derived default."""
    return isinstance(value, str) and value.strip().lower() == AUTO


def default_cold_dir(system: str, environ: Mapping[str, str], home: Path) -> Path:
    """Return the system's own place for caches; it need not exist.

    `XDG_CACHE_HOME` counts only when absolute, as the XDG specification demands.
    """
    if system == "Darwin":
        return home / "Library" / "Caches" / "omlx-cache"
    xdg = environ.get("XDG_CACHE_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else home / ".cache") / "omlx-cache"


def state_dir(system: str, environ: Mapping[str, str], home: Path) -> Path:
    """Return where this user's programs remember what outlives them; it need not exist."""
    if system == "Darwin":
        return home / "Library" / "Application Support" / "omlx-cache"
    xdg = environ.get("XDG_STATE_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else home / ".local" / "state") / "omlx-cache"


def expand(text: str | os.PathLike[str], home: Path) -> Path:
    """Return an absolute path, with `~` for `home`; raises ValueError for an empty one."""
    raw = os.fspath(text)
    if not raw.strip() or "\0" in raw:
        raise ValueError("not a path")
    if raw == "~" or raw.startswith("~/"):
        return home / raw[2:]
    return Path(os.path.abspath(os.path.expanduser(raw)))


def cold_dir_from_environment(system: str, environ: Mapping[str, str], home: Path) -> Path:
    """Return the cold directory that `CacheSettings()` would choose; raises ValueError for ''."""
    given = environ.get(COLD_DIR_VARIABLE)
    if given is None or is_auto(given):
        return default_cold_dir(system, environ, home)
    return expand(given, home)
