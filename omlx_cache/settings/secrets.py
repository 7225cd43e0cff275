"""A secret, out of a file of this user's alone."""

import os
from pathlib import Path

from omlx_cache.settings.errors import ConfigError

MOST_BYTES = 4096
IN_FILE = "file:"


def names_file(value: object) -> bool:
    """Tell whether a value names a file with the secret and is none itself: `file:PATH`."""
    return isinstance(value, str) and value.startswith(IN_FILE)


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
