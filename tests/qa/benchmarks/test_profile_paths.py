"""The script that writes the profiles in docs/profiles."""

import runpy
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
SMALL = {"TOKENS": 1024, "APPENDED": 256, "FILES": 256, "SAMPLES": 12, "LAYERS": 2}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """The script's names, with next to nothing to do."""
    names = runpy.run_path(str(ROOT / "benchmarks" / "profile_paths.py"))
    names["profile"].__globals__.update(SMALL)
    return names


def pages() -> list[str]:
    return ["look-up", "restore-hot", "restore-cold", "commit", "start-up"] + [
        f"append-{kind}" for kind in ("dense", "windowed", "hybrid")
    ]


def test_every_path_has_a_page_in_the_documents(script: dict[str, Any]) -> None:
    written = {path.stem for path in (ROOT / "docs" / "profiles").glob("*.md")} - {"README"}
    assert set(script["PATHS"]) == set(pages()) == written


@pytest.mark.parametrize("path", ["look-up", "restore-cold", "commit", "append-hybrid", "start-up"])
def test_a_page_names_lines_of_this_project(path: str, script: dict[str, Any]) -> None:
    told = script["profile"](path)
    rows = [line.split("|")[1:-1] for line in told.splitlines() if "%" in line]
    assert 1 <= len(rows) <= 10
    shares = [float(row[0].strip().rstrip("%")) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 100.5
    places = [row[1].strip().strip("`").partition(":")[0] for row in rows]
    assert any((ROOT / place).is_file() for place in places if "/" in place)
    assert not any("profile_paths" in place or place.startswith("/") for place in places)
