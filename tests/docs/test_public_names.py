"""What the guides import is public, and there."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {
    "omlx_cache",
    "omlx_cache.adapters",
    "omlx_cache.integrations.batch",
    "omlx_cache.integrations.mlx_lm",
    "omlx_cache.integrations.mlx_vlm",
    "omlx_cache.integrations.omlx",
    "omlx_cache.integrations.openai_server",
    "omlx_cache.integrations.vllm_mlx",
    "omlx_cache.kv",
}
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _imports(guide: Path) -> Iterator[tuple[str, str]]:
    for code in re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("omlx_cache"):
                yield from ((node.module or "", alias.name) for alias in node.names)


def test_guides_import_public_modules_only() -> None:
    found = {(guide.name, module) for guide in GUIDES for module, _name in _imports(guide)}
    assert found
    assert {(guide, module) for guide, module in found if module not in PUBLIC} == set()


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_what_a_guide_imports_is_there(guide: Path) -> None:
    for module, name in _imports(guide):
        assert getattr(import_module(module), name) is not None
