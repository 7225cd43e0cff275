"""What runs in the new process: models built again, stores opened again, the same questions."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from kit import zoo

from .cases import Case
from .damage import NOTICED
from .matrix import disk_cells


def main() -> None:
    """Read the questions from the file named on the command line, print the cells as JSON."""
    document = json.loads(Path(sys.argv[1]).read_text())
    answers = {}
    for name, cases in document["jobs"].items():
        model = zoo.build(name)
        directory = Path(document["root"]) / name
        asked = [Case.from_json(case) for case in cases]
        cells = disk_cells(model, directory, asked, NOTICED[:1])
        answers[name] = {position: asdict(cell) for position, cell in cells.items()}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
