import re
from functools import cache
from pathlib import Path

import pytest

from kit.trees import ROOT
from omlx_cache.status.metrics import REASONS

NO_PROSE = re.compile(r"^```.*?^```$|<!--.*?-->", re.DOTALL | re.MULTILINE)
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")]
)


def _prose(document: Path) -> str:
    """A document without its programs, transcripts and comments."""
    return NO_PROSE.sub("", document.read_text(encoding="utf-8"))


@cache
def _anchors(document: Path) -> set[str]:
    """The names that a code host gives to a document's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", _prose(document), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        taken = sum(re.fullmatch(rf"{re.escape(plain)}(-\d+)?", each) is not None for each in found)
        found.add(f"{plain}-{taken}" if taken else plain)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", _prose(document)):
        if "://" in target:
            continue
        place, _hash, anchor = target.partition("#")
        path = (document.parent / place).resolve() if place else document
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path), target


@pytest.mark.parametrize("folder", ["docs", "docs/decisions"])
def test_an_index_has_each_page_of_its_folder(folder: str, root: Path) -> None:
    linked = re.findall(r"\]\(([a-z0-9-]+\.md)\)", (root / folder / "README.md").read_text())
    assert {"README.md", *linked} == {path.name for path in (root / folder).glob("*.md")}


def test_troubleshooting_has_each_reason_with_its_remedy(root: Path) -> None:
    text = (root / "docs/troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[a-z_`, ]+) \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE)
    assert sorted({*REASONS} & {*re.findall(r"[a-z_]+", " ".join(rows))}) == sorted(REASONS)
