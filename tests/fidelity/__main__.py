"""Measure everything and write the records and the page; takes some minutes."""

import logging
import tempfile
from pathlib import Path

from . import record
from .conversation import lengths_of, retention
from .document import PATH, render
from .matrix import measure
from .mixtures import NAMES


def main() -> None:
    """Write `docs/fidelity.csv` and `docs/fidelity.md`."""
    logging.getLogger("omlx_cache").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as root:
        matrix = measure(NAMES, Path(root) / "matrix")
        records = []
        for name in NAMES:
            folder = Path(root) / "turns" / name
            found = [retention(name, length, folder / str(length)) for length in lengths_of(name)]
            records.append(record.record(matrix[name], found))
            print(*records[-1], flush=True)
    record.PATH.write_text(record.write(records), encoding="utf-8")
    PATH.write_text(render(records), encoding="utf-8")


if __name__ == "__main__":
    main()
