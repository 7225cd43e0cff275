#!/usr/bin/env python3
"""Counts statements, modules and class names defined twice, and fails when one rises.

    scripts/size.py [ROOT]

A statement is an `ast.stmt` that is neither an import nor a string: docstrings and comments cost
nothing. LIMITS holds what there is; a change that makes the code smaller lowers it.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

OUTSIDE = ("integrations", "control", "status", "tools", "simulate")
"""Folders of `omlx_cache` that embed, show or measure the cache; the rest of it is the core."""


class Limit(NamedTuple):
    statements: int
    modules: int
    doubled: int


LIMITS = {
    "storage": Limit(6786, 54, 0),
    "core": Limit(7036, 71, 0),
    "outside": Limit(11626, 141, 0),
    "wheel": Limit(25448, 266, 0),
    "benchmarks": Limit(1500, 18, 0),
    "tests": Limit(31378, 478, 0),
}


@dataclass
class Size:
    """What a part of the tree holds."""

    statements: int = 0
    modules: int = 0
    classes: Counter[str] = field(default_factory=Counter)

    @property
    def doubled(self) -> list[str]:
        return sorted(name for name, times in self.classes.items() if times > 1)


def parts_of(path: Path) -> tuple[str, ...]:
    """Return the parts of the tree that a module counts for; `path` is relative to the root."""
    match path.parts:
        case ("tests" | "benchmarks" as part, *_):
            return (part,)
        case ("storage", "omlx_cache_storage", *_):
            return ("storage", "wheel")
        case ("omlx_cache", folder, *_):
            return ("outside" if folder in OUTSIDE else "core", "wheel")
        case ("daemon", "omlx_cache_daemon", *_):
            return ("outside", "wheel")
    return ()


def count(root: Path) -> dict[str, Size]:
    """Return the size of each part that LIMITS names."""
    sizes = {part: Size() for part in LIMITS}
    for folder in ("storage", "omlx_cache", "daemon", "tests", "benchmarks"):
        for path in sorted((root / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
            for part in parts_of(path.relative_to(root)):
                size = sizes[part]
                size.modules += 1
                size.statements += sum(1 for _ in statements(tree))
                size.classes.update(
                    node.name for node in tree.body if isinstance(node, ast.ClassDef)
                )
    return sizes


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or not isinstance(node, ast.stmt):
            continue
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                continue
        yield node


def risen(sizes: Mapping[str, Size]) -> list[str]:
    """Return a line for each count above its limit."""
    lines = []
    for part, limit in LIMITS.items():
        size = sizes[part]
        counts = (size.statements, size.modules, len(size.doubled))
        for name, found, most in zip(limit._fields, counts, limit, strict=True):
            if found > most:
                lines.append(f"{part}: {found} {name}, at most {most}")
    return lines


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    sizes = count(root)
    print(f"{'part':8} {'statements':>10} {'modules':>8} {'doubled class names':>20}")
    for part, size in sizes.items():
        print(f"{part:8} {size.statements:10} {size.modules:8} {len(size.doubled):20}")
    print(f"twice in the wheel: {', '.join(sizes['wheel'].doubled)}")
    lines = risen(sizes)
    for line in lines:
        print(f"{line}: make it smaller, or say in the commit why it is worth it", file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
