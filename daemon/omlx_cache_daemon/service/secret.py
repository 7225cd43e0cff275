"""The secret of the status port, out of a file of this user's alone."""

from pathlib import Path

from omlx_cache.settings import ConfigError
from omlx_cache_storage.cold.disk import FileSystem

MOST_BYTES = 4096


def read_token(path: Path) -> str:
    """Return the file's first line; raises ConfigError where there is none, or where the file is
    not this user's alone."""
    fs = FileSystem()
    try:
        mode = path.stat().st_mode
        fd = fs.open(path)
        try:
            raw = fs.read(fd, MOST_BYTES, 0)
        finally:
            fs.close(fd)
        token = raw.decode().strip().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"status_token_file: {path}: {why}") from error
    if mode & 0o077:
        raise ConfigError(f"status_token_file: others may read {path}; chmod 600 {path}")
    if not token:
        raise ConfigError(f"status_token_file: {path} is empty; it must hold the secret")
    return token
