"""What the guides import is public, and there."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from kit.trees import ROOT

PUBLIC = {
    "omlx_cache",
    "omlx_cache.adapters",
    "omlx_cache.integrations.batch",
    "omlx_cache.integrations.mlx_lm",
    "omlx_cache.integrations.mlx_vlm",
    "omlx_cache.integrations.omlx",
    "omlx_cache.integrations.rows",
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


def test_guides_import_public_names_only() -> None:
    found = {(guide.name, *imported) for guide in GUIDES for imported in _imports(guide)}
    assert {module for _guide, module, _name in found} <= PUBLIC, found
    for guide, module, name in found:
        assert hasattr(import_module(module), name), guide
    assert found
