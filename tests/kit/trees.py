"""Directories: the checkout, those of tests, and files in them."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The checkout."""


@contextmanager
def short_directory() -> Iterator[Path]:
    """A private directory whose path leaves room for a socket's name; pytest's own do not."""
    with tempfile.TemporaryDirectory(
        prefix=f"oc-{os.getpid()}-", dir="/tmp", ignore_cleanup_errors=True
    ) as made:
        yield Path(made)


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write texts by their paths below a directory, which is returned."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
