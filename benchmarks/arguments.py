"""Arguments of the longer benchmarks: refused before anything is measured."""

import argparse
from collections.abc import Callable
from pathlib import Path


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads a whole number of at least that many."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least:,}")
        return number

    return read


def folder(text: str) -> Path:
    """Return a folder that exists."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {text}")
    return path


def file_to_write(text: str) -> Path:
    """Return the path of a file whose folder exists."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: no file in a directory")
    return path
