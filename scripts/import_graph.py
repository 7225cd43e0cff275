#!/usr/bin/env python3
"""Reads the packages' imports and fails on a circle or a reach through `store.hot`.

    scripts/import_graph.py [--from MODULE] [--to MODULE] [--report] [FOLDER ...]

Every import counts, inside a function or under TYPE_CHECKING too: what a reader must know of, not
what the interpreter meets first. `from package import name` leads to the module of that name, or
to the package's `__init__` when there is none. `__main__` modules are left out: nothing but a
start imports them. The standard library is all that this needs.
"""

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("storage/omlx_cache_storage", "omlx_cache", "daemon/omlx_cache_daemon")
FIRST, LAST = "omlx_cache_storage.page", "omlx_cache_daemon.cli"

LOADED_BY_NAME = {"omlx_cache_daemon.parsing": "omlx_cache_daemon.commands"}
"""Modules that import every module of a package by its file name, which no statement shows."""

STORE = "omlx_cache.store"
"""The module, or package, that owns the tiers."""


class Import(NamedTuple):
    """One statement: `line` of `source` imports `target`; `place` is empty at the top level."""

    source: str
    line: int
    target: str
    place: str = ""


class Reach(NamedTuple):
    """An expression that takes a store's hot tier."""

    source: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    is_package: bool
    tree: ast.Module

    def resolve(self, level: int, named: str | None) -> str:
        """Return the absolute name behind `from <level dots><named> import`."""
        if level == 0:
            return named or ""
        parents = self.name.split(".")
        kept = parents[: len(parents) - level + self.is_package]
        return ".".join([*kept, *([named] if named else [])])


Graph = Mapping[str, Mapping[str, Import]]


def read_modules(folders: Sequence[Path]) -> dict[str, Module]:
    """Return the modules of package folders by full name."""
    modules = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            parts = [folder.name, *path.relative_to(folder).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            if parts[-1] != "__main__":
                tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
                modules[name] = Module(name, is_package, tree)
    return modules


def graph_of(modules: Mapping[str, Module]) -> dict[str, dict[str, Import]]:
    """Return, for each module, the modules that it imports, each with one statement."""
    graph: dict[str, dict[str, Import]] = {name: {} for name in modules}
    for module in modules.values():
        for found in imports_of(module, modules):
            if found.target != module.name:
                graph[module.name].setdefault(found.target, found)
    for loader, package in LOADED_BY_NAME.items():
        for name in modules:
            if loader in modules and name.startswith(f"{package}."):
                graph[loader].setdefault(name, Import(loader, 0, name, "by name"))
    return graph


def imports_of(module: Module, known: Mapping[str, Module]) -> Iterator[Import]:
    """Yield the imports of known modules, wherever they stand."""
    for node, place in _statements(module.tree, ""):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            base = module.resolve(node.level, node.module)
            members = [f"{base}.{alias.name}" for alias in node.names]
            targets = [member if member in known else base for member in members]
        for target in targets:
            if target in known:
                yield Import(module.name, node.lineno, target, place)


def _statements(node: ast.AST, place: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = "in a function"
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            inner = "for types"
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, place
        yield from _statements(child, inner)


def components(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components, imported ones first (Tarjan 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for target in graph[name]:
            if target not in order:
                visit(target)
            if target in stack:
                lowest[name] = min(lowest[name], lowest[target])
        if lowest[name] == order[name]:
            start = stack.index(name)
            found.append(sorted(stack[start:]))
            del stack[start:]

    for name in graph:
        if name not in order:
            visit(name)
    return found


def longest_chain(graph: Graph, first: str = "", last: str = "") -> list[str]:
    """Return the longest chain's modules, the imported one first; from and to a module if named.

    A circle counts with all its modules, since a reader has to know them all.
    """
    best: dict[str, list[str]] = {}
    for members in components(graph):
        below = [best[t] for name in members for t in graph[name] if t in best]
        if below or not first or first in members:
            best |= dict.fromkeys(members, max(below, key=len, default=[]) + members)
    if last:
        return best.get(last, [])
    return max(best.values(), key=len, default=[])


def reaches(module: Module) -> Iterator[Reach]:
    """Yield where a module outside the store takes the hot tier from something named a store."""
    if module.name == STORE or module.name.startswith(f"{STORE}."):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == "hot" and _is_store(node.value):
            yield Reach(module.name, node.lineno, ast.unparse(node))


def _is_store(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _is_store(node.func)
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name.rpartition("_")[2] == "store"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a package's")
    parser.add_argument("--from", dest="first", default=FIRST, metavar="MODULE")
    parser.add_argument("--to", dest="last", default=LAST, metavar="MODULE")
    parser.add_argument("--report", action="store_true", help="print, and exit with 0 all the same")
    args = parser.parse_args(arguments)
    modules = read_modules(args.folders or [ROOT / folder for folder in PACKAGES])
    for name in (args.first, args.last):
        if name not in modules:
            parser.error(f"there is no module {name}")
    graph = graph_of(modules)
    circles = [members for members in components(graph) if len(members) > 1]
    chain = longest_chain(graph, args.first, args.last)
    reaching = [reach for module in modules.values() for reach in sorted(reaches(module))]
    _print(graph, circles, chain, reaching)
    failed = bool(circles or reaching)
    return int(failed and not args.report)


def _print(
    graph: Graph, circles: list[list[str]], chain: list[str], reaching: Sequence[Reach]
) -> None:
    print(f"{len(graph)} modules, {sum(map(len, graph.values()))} imports")
    print(f"circles: {len(circles)}")
    for members in circles:
        print(f"  {len(members)} modules: {', '.join(members)}")
        for name in members:
            for found in (graph[name][target] for target in members if target in graph[name]):
                place = f" ({found.place})" if found.place else ""
                print(f"    {found.source}:{found.line} imports {found.target}{place}")
    print(f"longest chain: {len(chain)} modules (of all modules: {len(longest_chain(graph))})")
    for name in chain:
        print(f"  {name}")
    print(f"reaches through a store's hot tier: {len(reaching)}")
    for reach in reaching:
        print(f"  {reach.source}:{reach.line} {reach.text}")


if __name__ == "__main__":
    sys.exit(main())
