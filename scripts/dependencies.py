#!/usr/bin/env python3
"""Compares what the packages import with what pyproject.toml declares, and fails where they differ.

    scripts/dependencies.py

An import counts wherever it stands. A module that is named as text, for `import_module`, counts as
a use of what is declared. The standard library is all that this needs.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("storage/omlx_cache_storage", "omlx_cache", "daemon/omlx_cache_daemon")
OWN = {Path(package).name for package in PACKAGES}
HOSTS = {"app", "mlx_vlm", "vllm_mlx"}
"""Servers that have this package imported, and are none of its dependencies."""


def uses_of(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield the outermost packages that are imported, or named as text: then with False."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], True) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0], True
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(".")[0], False


def declared(project: dict[str, dict[str, list[str]]]) -> set[str]:
    """Return the packages that the dependencies are imported as, those of extras too."""
    needed = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    return {re.split(r"[\[<>=!~; ]", str(one))[0].replace("-", "_") for one in needed}


def main() -> int:
    imported: dict[str, Path] = {}
    named: set[str] = set()
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for name, is_import in uses_of(ast.parse(path.read_text(encoding="utf-8"))):
            named.add(name)
            if is_import and name not in sys.stdlib_module_names:
                imported.setdefault(name, path.relative_to(ROOT))
    known = declared(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    )
    undeclared = sorted(imported.keys() - known - OWN - HOSTS)
    lines = [f"{imported[name]} imports {name}: declare it" for name in undeclared]
    lines += [f"nothing imports {name}, which is declared" for name in sorted(known - named)]
    print("\n".join(lines) or f"{len(known)} dependencies, each declared and imported")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
