"""A secret, out of a file of this user's alone."""

from pathlib import Path

from omlx_cache.settings.errors import ConfigError
from omlx_cache_storage.cold.disk import FileSystem

MOST_BYTES = 4096


def read_secret(path: Path, setting: str) -> str:
    """Return the first line of the file that a setting names; raises ConfigError where there is
    none, or where the file is not this user's alone."""
    fs = FileSystem()
    try:
        mode = path.stat().st_mode
        fd = fs.open(path)
        try:
            raw = fs.read(fd, MOST_BYTES, 0)
        finally:
            fs.close(fd)
        secret = raw.decode().strip().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{setting}: {path}: {why}") from error
    if mode & 0o077:
        raise ConfigError(f"{setting}: others may read {path}; chmod 600 {path}")
    if not secret:
        raise ConfigError(f"{setting}: {path} is empty; it must hold the secret")
    return secret
