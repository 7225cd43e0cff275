"""What the source distribution holds: all that its documents and its tests refer to."""

import re
import subprocess
import sys
import tarfile

import pytest

from kit.trees import ROOT


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The paths in an sdist of this tree, without the leading folder."""
    directory = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        return {name.partition("/")[2] for name in opened.getnames()}


def test_every_file_that_the_documents_link_is_in_the_sdist(names: set[str]) -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target:
                path = (document.parent / target).resolve().relative_to(ROOT).as_posix()
                assert path in names or any(name.startswith(f"{path}/") for name in names), path


@pytest.mark.parametrize("folder", ["examples", "tests", "scripts", "docs"])
def test_every_program_of_a_folder_is_in_the_sdist(folder: str, names: set[str]) -> None:
    programs = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}
    assert programs - names == set()


def test_what_the_build_reads_is_in_the_sdist(names: set[str]) -> None:
    assert {"README.md", "LICENSE", "hatch_build.py", "pyproject.toml"} <= names
