"""Runs from the repository's root as `python -m tests.chaos`, and with `tests` on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from chaos.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
