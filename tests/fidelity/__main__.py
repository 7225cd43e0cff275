"""Measure everything and write the page; takes some minutes."""

import logging
import tempfile
from pathlib import Path

from .conversation import lengths_of, retention
from .document import PATH, render
from .matrix import measure
from .mixtures import NAMES


def main() -> None:
    """Write `docs/fidelity.md`."""
    logging.getLogger("omlx_cache").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as root:
        matrix = measure(NAMES, Path(root) / "matrix")
        conversations = {}
        for name in NAMES:
            folder = Path(root) / "turns" / name
            conversations[name] = [
                retention(name, length, folder / str(length)) for length in lengths_of(name)
            ]
            print(name, *conversations[name], flush=True)
    PATH.write_text(render(matrix, conversations))


if __name__ == "__main__":
    main()
