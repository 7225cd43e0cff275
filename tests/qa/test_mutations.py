"""Each guarantee of the design has a test that fails without it.

A mutation in `mutations` is a patch that breaks one part of one guarantee. The lines before its
diff name the guarantee and, after `Caught by:`, the tests that must fail. Every run checks that
the patches still apply and that their tests exist; `nightly` runs those tests in a copy of the
code that has the mutation. To try one alone: `pytest tests/qa/test_mutations.py -m "" -k 12-`.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"omlx_cache": ".", "omlx_cache_daemon": "daemon", "omlx_cache_storage": "storage"}
MUTATIONS = {path.stem: path for path in sorted((ROOT / "tests/qa/mutations").glob("*.patch"))}
GUARANTEES = range(1, 12)
SECONDS = 600
FAILED = 1
"""Pytest's exit status when tests ran and some failed."""
RUN = f"""
import importlib, os, sys, pytest
for name in {[*PACKAGES]}:
    path = importlib.import_module(name).__file__
    if os.path.commonpath([os.path.realpath(path), os.getcwd()]) != os.getcwd():
        sys.exit(f"{{name}} is imported from {{path}}")
sys.exit(pytest.main(sys.argv[1:]))
"""
"""Runs pytest on the copy in the current directory, or ends with an error."""

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")


def heads(mutation: str, field: str) -> list[str]:
    """Return what the lines before a diff say after a field's name."""
    head = MUTATIONS[mutation].read_text().partition("\ndiff --git ")[0]
    return [line.partition(": ")[2] for line in head.splitlines() if line.startswith(f"{field}: ")]


def apply(mutation: str, directory: Path, *options: str) -> None:
    """Apply a mutation; asserts that it fits."""
    patch = str(MUTATIONS[mutation])
    # A copy below a work tree is not taken for a part of it.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(directory.parent)}
    command = ["git", "apply", *options, patch]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"write {patch} anew: {done.stderr}"


def copied(directory: Path) -> Path:
    """Return a new copy of the code and its tests."""
    for name in ("omlx_cache", "storage", "daemon", "tests"):
        shutil.copytree(ROOT / name, directory / name)
    shutil.copy2(ROOT / "pyproject.toml", directory)
    return directory.resolve()


def run_tests(tree: Path, tests: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a copy, on the copy's code, and in one process."""
    path = os.pathsep.join(str(tree / folder) for folder in PACKAGES.values())
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    command = [sys.executable, "-c", RUN, "-n", "0", "-m", "", "--no-header", *options, *tests]
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS
    )


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_applies_and_its_tests_exist(mutation: str) -> None:
    apply(mutation, ROOT, "--check")
    assert heads(mutation, "Guarantee")
    tests = heads(mutation, "Caught by")
    assert tests
    for test in tests:
        file, _, name = test.partition("[")[0].partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert name in {f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)}, test


def test_each_guarantee_has_a_mutation() -> None:
    numbers = {
        int(head.split()[0]) for mutation in MUTATIONS for head in heads(mutation, "Guarantee")
    }
    assert numbers == set(GUARANTEES)


@pytest.mark.nightly
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_caught(mutation: str, tmp_path: Path) -> None:
    tree = copied(tmp_path / "tree")
    apply(mutation, tree)
    for test in heads(mutation, "Caught by"):
        done = run_tests(tree, [test], "-x")
        assert done.returncode == FAILED, done.stdout + done.stderr
        # Not an error in a fixture, which a broken test has as well.
        assert f"\nFAILED {test.partition('[')[0]}" in done.stdout, done.stdout


@pytest.mark.nightly
@pytest.mark.timeout(2 * SECONDS)
def test_without_a_mutation_its_tests_pass(tmp_path: Path) -> None:
    tree = copied(tmp_path / "tree")
    tests = {test for mutation in MUTATIONS for test in heads(mutation, "Caught by")}
    done = run_tests(tree, sorted(tests))
    assert done.returncode == 0, done.stdout + done.stderr
