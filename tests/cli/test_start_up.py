import subprocess
import sys

import pytest

from .conftest import StartStore

_RUN = """
import sys
from omlx_cache_daemon.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print("\\nLOADED", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(code)
"""
_ARGUMENTS = {"argparse", "json", "logging", "pathlib", "socket"}
_HEAVY = {"mlx", "mlx_lm", "transformers", "torch"}
_UNNEEDED = {"pydantic", "pydantic_settings", "numpy", "rich", "asyncio"}


def _loaded(environment: dict[str, str], *arguments: str) -> tuple[int, set[str]]:
    ended = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended.returncode, set(ended.stderr.rpartition("LOADED")[2].split())


@pytest.mark.parametrize(
    "arguments",
    [("log",), ("stats",), ("ps",), ("ls",), ("ls", "cd"), ("why",)],
    ids=" ".join,
)
def test_asking_a_store_imports_nothing_heavy(
    environment: dict[str, str], start_store: StartStore, arguments: tuple[str, ...]
) -> None:
    start_store()
    code, modules = _loaded(environment, *arguments)
    assert code == 0
    assert "omlx_cache_daemon" in modules
    assert modules & (_HEAVY | _UNNEEDED) == set()


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_the_overview_imports_no_command_and_no_parser(
    environment: dict[str, str], argument: str
) -> None:
    code, modules = _loaded(environment, argument)
    assert code == 0
    assert modules & (_HEAVY | _UNNEEDED | _ARGUMENTS) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ("config",),
        ("demo", "--help"),
        ("ls",),
        ("rm", "x", "--dry-run"),
        ("quota",),
        ("rm", "--stale", "--to", "0", "--dry-run"),
    ],
    ids=" ".join,
)
def test_no_command_imports_mlx_before_it_needs_it(
    environment: dict[str, str], arguments: tuple[str, ...]
) -> None:
    _, modules = _loaded(environment, *arguments)
    assert "omlx_cache_daemon" in modules
    # Listing files counts no ages.
    assert modules & (_HEAVY | ({"numpy"} if arguments == ("ls",) else set())) == set()


def test_ps_imports_no_dataclasses(environment: dict[str, str], start_store: StartStore) -> None:
    start_store()
    code, modules = _loaded(environment, "ps")
    assert (code, modules & {"dataclasses", "inspect", "logging"}) == (0, set())


def test_the_library_imports_nothing_until_a_name_is_used() -> None:
    code = (
        "import sys, omlx_cache, omlx_cache.settings, omlx_cache.control\n"
        "assert {'BlockStore', 'CacheSettings', 'PrefixCache'} <= set(dir(omlx_cache))\n"
        "assert not {'mlx', 'pydantic', 'numpy'} & set(sys.modules), 'too much'\n"
        "omlx_cache.CacheSettings\n"
        "assert 'pydantic' in sys.modules and 'mlx' not in sys.modules\n"
        "try:\n    omlx_cache.Nonsense\nexcept AttributeError as error:\n    print(error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "'omlx_cache' has no attribute 'Nonsense'" in ended.stdout


def test_every_public_name_can_be_imported() -> None:
    code = (
        "import omlx_cache\n"
        "print(*[n for n in omlx_cache.__all__ if getattr(omlx_cache, n) is None])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "\n"


def test_the_library_starts_the_command_line_too(environment: dict[str, str]) -> None:
    def said(package: str, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", package, *arguments]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return ended.returncode, ended.stdout + ended.stderr

    for arguments in (("--version",), ("ls",), ("no-such-command",)):
        assert said("omlx_cache", *arguments) == said("omlx_cache_daemon", *arguments)
    assert said("omlx_cache", "--version")[0] == 0
