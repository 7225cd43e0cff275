"""Where the service's messages go: standard error, for a person or for the journal."""

import logging
import os
import sys
from collections.abc import Mapping

from omlx_cache.package import set_level

_PRIORITIES = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}


class JournalFormatter(logging.Formatter):
    """Begins each line with its priority, which the journal takes off again; it has the time."""

    def format(self, record: logging.LogRecord) -> str:
        mark = f"<{_PRIORITIES.get(record.levelname, 6)}>"
        return "\n".join(mark + line for line in super().format(record).splitlines())


def show_messages(level: str) -> None:
    """Show messages of this project from `level` on, of others from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    if is_journal(os.environ):
        handler.setFormatter(JournalFormatter("%(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    set_level(level)


def is_journal(environ: Mapping[str, str]) -> bool:
    """True when standard error is the journal's, as systemd says it."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        info = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(info.st_dev), str(info.st_ino))
