"""scripts/dependencies.py: what is imported is declared, and what is declared is imported."""

import ast
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "dependencies.py"


def test_what_is_imported_is_declared() -> None:
    ended = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout


def test_a_module_that_is_named_as_text_counts_as_a_use() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from dependencies import declared, uses_of
    finally:
        sys.path.pop(0)
    tree = ast.parse("import a.b\nfrom c.d import e\nfrom . import f\nload('g.h')")
    assert set(uses_of(tree)) == {("a", True), ("c", True), ("g", False)}
    project = {
        "dependencies": ["py-c[x]>=1; sys_platform == 'linux'"],
        "optional-dependencies": {"more": ["d<2"], "dev": ["e"]},
    }
    assert declared(project) == {"py_c", "d"}
