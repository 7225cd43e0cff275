"""Puts a measured text between two markers of a document."""

from pathlib import Path


def record(path: Path, name: str, text: str) -> None:
    """Replace what lies between a name's markers; raises ValueError for a document without."""
    begin, end = f"<!-- {name}: written by `python -m tests.chaos` -->", f"<!-- {name} ends -->"
    before, found, rest = path.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no markers for {name}")
    path.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}")
