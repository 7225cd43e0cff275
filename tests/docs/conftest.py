import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.trees import ROOT


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def code_block() -> Callable[[str, str, str], str]:
    """Returns the first fenced block of a language behind a heading of a document."""

    def find(document: str, heading: str, language: str) -> str:
        text = (ROOT / document).read_text(encoding="utf-8")
        _before, found, behind = text.partition(f"\n{heading}\n")
        assert found, f"{document} has no heading {heading!r}"
        match = re.search(rf"^```{language}\n(.*?)^```$", behind, re.MULTILINE | re.DOTALL)
        assert match is not None
        return match.group(1)

    return find
