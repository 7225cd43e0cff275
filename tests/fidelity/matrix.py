"""Measuring one family: every kind of restore, from every tier, and the damage it must show."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from kit import zoo
from kit.drive import settings
from omlx_cache import BlockStore, PrefixCache

from .cases import POSITIONS, Case, ask, populate
from .damage import IN_MEMORY, NOTICED, ON_DISK, Victim, in_memory, on_disk

TIERS = ("hot", "cold", "new process", "hot_cache_only")


@dataclass
class Cell:
    """One kind of restore from one tier: tokens, bit-equality, and controls that failed."""

    restored: int
    exact: bool
    controls: int = 0
    missed: list[str] = field(default_factory=list)


@dataclass
class FamilyResult:
    """All cells of a family by position, then tier; `problem` when the family cannot work."""

    name: str
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)
    first_visit: int = 0
    problem: str = ""


def measure(names: Sequence[str], root: Path) -> dict[str, FamilyResult]:
    """Measure families; one new process serves them all."""
    results, jobs = {}, {}
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
        results[name], cases = _measure_here(name, root / name)
        if cases:
            jobs[name] = [case.to_json() for case in cases]
    for name, cells in _in_new_process(jobs, root).items():
        for position, cell in cells.items():
            results[name].cells[position]["new process"] = Cell(**cell)
    return results


def _measure_here(name: str, directory: Path) -> tuple[FamilyResult, list[Case]]:
    result = FamilyResult(name, {position: {} for position in POSITIONS})
    model = zoo.build(name)
    with BlockStore(settings(directory)) as store:
        cache = PrefixCache(model, store)
        if cache.unsupported_reason is not None:
            result.problem = cache.unsupported_reason
            return result, []
        cases = populate(model, cache)
        for case in cases:
            result.cells[case.position]["hot"] = _hot_cell(model, cache, case, IN_MEMORY)
            if case.position == "mid-sequence branch":
                result.first_visit = case.first_visit
    for position, cell in disk_cells(model, directory, cases, ON_DISK).items():
        result.cells[position]["cold"] = cell
    with BlockStore(settings(directory / "unused", hot_cache_only=True)) as store:
        cache = PrefixCache(model, store)
        for case in populate(model, cache):
            cell = _hot_cell(model, cache, case, IN_MEMORY[-1:])
            result.cells[case.position]["hot_cache_only"] = cell
    mx.clear_cache()
    return result, cases


def _hot_cell(model: Any, cache: PrefixCache, case: Case, kinds: Sequence[str]) -> Cell:
    hot = cache.store.hot
    came = ask(model, cache, case.tokens)
    cell = Cell(came.restored, came.digest == case.expected)
    for target in case.targets:
        for kind in kinds:
            with in_memory(hot, target, kind):
                wrong = ask(model, cache, case.tokens)
            _note(cell, target, kind, wrong.digest != case.expected)
    return cell


def disk_cells(
    model: Any, directory: Path, cases: Sequence[Case], kinds: Sequence[str]
) -> dict[str, Cell]:
    """Measure cases from files, damage each time with a store that has just been opened."""
    cells = {}
    with BlockStore(settings(directory)) as store:
        cache = PrefixCache(model, store)
        for case in cases:
            came = ask(model, cache, case.tokens)
            cells[case.position] = Cell(came.restored, came.digest == case.expected)
    for case in cases:
        for target in case.targets:
            for kind in kinds:
                _damage(model, directory, case, cells[case.position], target, kind)
    return cells


def _damage(model: Any, directory: Path, case: Case, cell: Cell, target: Victim, kind: str) -> None:
    with on_disk(directory, target, kind), BlockStore(settings(directory)) as store:
        cache = PrefixCache(model, store)
        if kind in NOTICED:
            # How much is restored tells: what follows a miss is a run like any other.
            with cache.session(case.tokens) as session:
                shown = session.cached_tokens < cell.restored
        else:
            shown = ask(model, cache, case.tokens).digest != case.expected
    _note(cell, target, kind, shown)


def _note(cell: Cell, target: Victim, kind: str, shown: bool) -> None:
    cell.controls += 1
    if not shown:
        cell.missed.append(f"{kind} {target.group}")


def _in_new_process(jobs: dict[str, Any], root: Path) -> dict[str, dict[str, Any]]:
    if not jobs:
        return {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"root": str(root), "jobs": jobs}, file)
        file.flush()
        output = subprocess.run(
            [sys.executable, "-m", "fidelity.matrix", file.name],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
    return dict(json.loads(output))


def answer(questions: Path) -> None:
    """Print the cells of a file's questions as JSON: what runs in the new process, on models that
    are built again and stores that are opened again."""
    document = json.loads(questions.read_text())
    answers = {}
    for name, cases in document["jobs"].items():
        model = zoo.build(name)
        directory = Path(document["root"]) / name
        asked = [Case.from_json(case) for case in cases]
        cells = disk_cells(model, directory, asked, NOTICED[:1])
        answers[name] = {position: asdict(cell) for position, cell in cells.items()}
    print(json.dumps(answers))


if __name__ == "__main__":
    answer(Path(sys.argv[1]))
