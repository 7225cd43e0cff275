"""Prints or writes a page that is made from the code: what `*_reference.py` have in common."""

import sys
from collections.abc import Sequence
from pathlib import Path


def write_page(page: str, default: str, arguments: Sequence[str]) -> int:
    """Write a page to the path that is the first argument, or to the default; `-` prints it.
    Return the exit code."""
    if arguments[:1] == ["-"]:
        sys.stdout.write(page)
    else:
        Path(arguments[0] if arguments else default).write_text(page, encoding="utf-8")
    return 0
