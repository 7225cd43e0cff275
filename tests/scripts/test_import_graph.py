"""scripts/import_graph.py: what it finds in small packages, and how it ends."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.trees import ROOT, write_tree

SCRIPT = ROOT / "scripts" / "import_graph.py"
Check = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Write a package `pkg` of the given modules, and run the script from `low` to `top`."""

    def run(sources: dict[str, str], *options: str) -> "subprocess.CompletedProcess[str]":
        modules = {"__init__": "", "low": "", "top": "", **sources}
        files = {f"{name}.py": source for name, source in modules.items()}
        folder = write_tree(tmp_path / "pkg", files)
        ends = ("--from", "pkg.low", "--to", "pkg.top")
        command = [sys.executable, str(SCRIPT), *ends, *options, str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


STRAIGHT = {"middle": "from pkg.low import x\n", "top": "import pkg.middle\n"}


def test_a_straight_package_passes_and_its_chain_is_printed(check: Check) -> None:
    ended = check(STRAIGHT)
    assert ended.returncode == 0, ended.stdout
    assert "circles: 0" in ended.stdout
    assert "longest chain: 3 modules (of all modules: 3)" in ended.stdout
    assert "  pkg.low\n  pkg.middle\n  pkg.top\n" in ended.stdout


@pytest.mark.parametrize(
    "low",
    [
        "import pkg.top\n",
        "from . import top\n",
        "from .top import x\n",
        "from pkg import top\n",
        "def f():\n    import pkg.top\n",
        "class C:\n    async def f(self):\n        from pkg.top import x\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.top import x\n",
        "try:\n    import pkg.top as t\nexcept ImportError:\n    t = None\n",
    ],
)
def test_a_circle_fails_wherever_its_import_stands(check: Check, low: str) -> None:
    ended = check({**STRAIGHT, "low": low})
    assert ended.returncode == 1
    assert "3 modules: pkg.low, pkg.middle, pkg.top" in ended.stdout
    assert f"pkg.low:{low.count(chr(10), 0, low.find('top')) + 1} imports pkg.top" in ended.stdout


def test_a_name_of_a_package_leads_to_its_init(check: Check) -> None:
    sources = {
        "sub/__init__": "from .inner import f\n",
        "sub/inner": "from ..low import x\n",
        "top": "from pkg.sub import f\n",
    }
    ended = check(sources)
    assert "  pkg.low\n  pkg.sub.inner\n  pkg.sub\n  pkg.top\n" in ended.stdout
    assert check({**sources, "low": "from pkg.sub import f\n"}).returncode == 1


@pytest.mark.parametrize(
    "source",
    [
        "def f(store):\n    return store.hot.info(1)\n",
        "class C:\n    def f(self):\n        return self._store.hot\n",
        "hot = bed.block_store.hot\n",
        "hot = make_store().hot\n",
    ],
)
def test_taking_a_stores_hot_tier_fails(check: Check, source: str) -> None:
    ended = check({"middle": source})
    assert ended.returncode == 1
    assert "reaches through a store's hot tier: 1" in ended.stdout
    assert f"pkg.middle:{source.count(chr(10), 0, source.find('.hot')) + 1} " in ended.stdout


@pytest.mark.parametrize(
    "source", ["x = store.stats().hot\n", "x = restore.hot\n", "x = stats.hot.nbytes\n"]
)
def test_what_only_looks_like_it_passes(check: Check, source: str) -> None:
    assert check({"middle": source}).returncode == 0


def test_an_unknown_module_is_a_usage_error(check: Check) -> None:
    ended = check({}, "--to", "pkg.absent")
    assert ended.returncode == 2
    assert "there is no module pkg.absent" in ended.stderr
