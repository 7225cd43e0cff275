"""scripts/dependencies.py: what is imported is declared, and what is declared is imported."""

import ast
import re
import subprocess
import sys

from kit.trees import ROOT
from scripts.dependencies import declared, uses_of

SCRIPT = ROOT / "scripts" / "dependencies.py"


def test_what_is_imported_is_declared() -> None:
    ended = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout


def test_a_module_that_is_named_as_text_counts_as_a_use() -> None:
    tree = ast.parse("import a.b\nfrom c.d import e\nfrom . import f\nload('g.h')")
    assert set(uses_of(tree)) == {("a", True), ("c", True), ("g", False)}
    project = {
        "dependencies": ["py-c[x]>=1; sys_platform == 'linux'"],
        "optional-dependencies": {"more": ["d<2"]},
    }
    assert declared(project) == {"py_c", "d"}


def test_what_running_needs_is_locked_as_the_tests_have_it() -> None:
    """Each version with its hashes; markers may differ where a tool needs more."""
    needed, all_of_it = (
        {
            (match[1], tuple(sorted(re.findall(r"sha256:[0-9a-f]{64}", match[0]))))
            for match in re.finditer(r"^([a-z][^ ]*).*\n(?: .*\n)*", path.read_text(), re.MULTILINE)
        }
        for path in (ROOT / "requirements.lock", ROOT / "requirements-dev.lock")
    )
    assert all(hashes for _, hashes in all_of_it)
    assert len(needed) > 40
    assert needed < all_of_it
    assert "//" not in (ROOT / "requirements.lock").read_text(), "no index is named"
