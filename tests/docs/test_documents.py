import re
from pathlib import Path

import pytest

from omlx_cache import reasons
from omlx_cache.tools.bench.report import BEGIN, END

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_the_index_of_decisions_has_them_all(root: Path) -> None:
    folder = root / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    records = {path.name for path in folder.glob("[0-9]*.md")}
    assert records
    assert set(re.findall(r"\]\(([0-9][^)]*)\)", index)) == records


def test_the_embedding_guide_explains_every_reason(root: Path) -> None:
    text = (root / "docs" / "embedding.md").read_text(encoding="utf-8")
    _before, _heading, table = text.partition("| reason | meaning |")
    explained = set(re.findall(r"`([a-z_]+)", table))
    words = {value for name, value in vars(reasons).items() if name.isupper()}
    assert explained == words


def test_the_benchmarks_page_has_figures_between_its_markers(root: Path) -> None:
    text = (root / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    section = text.partition(BEGIN)[2].partition(END)[0]
    for words in ("restore, hot", "restore, cold", "one memcpy", "raw reads", "MLX 0."):
        assert words in section


@pytest.mark.parametrize(
    "place", ["README.md", "docs/embedding.md", "docs/scheduler.md", "examples/scheduler.py"]
)
def test_programs_evaluate_a_prefill_in_one_way(place: str, root: Path) -> None:
    text = (root / place).read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL) if ".md" in place else [text]
    assert "session.evaluate()" in text
    for program in programs:
        assert "mx.eval(" not in program
        feeds = re.findall(r"cache=.*\.prompt_cache\)\n\s*(.*)", program)
        assert all("evaluate()" in then or ".append(" in then for then in feeds), feeds
