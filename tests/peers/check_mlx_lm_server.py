"""Run mlx-lm's own tests of its server with TieredPromptCache in the place of LRUPromptCache.

    check_mlx_lm_server.py TESTS/test_server.py

Exits with 1 and the names of those that fail and should not, or pass and are said not to. The file
is of the source distribution of the installed mlx-lm; nothing of it is changed. Its model, which is
on the hub, is one of drawn weights here.
"""

import importlib.util
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import mlx_lm.server
import mlx_lm.utils

from kit.tinylm import make_model
from omlx_cache.integrations.mlx_lm import TieredPromptCache

HUB = "lists the models that were downloaded from the hub to this machine"
MOCK = "inserts objects that are no caches, and asks how an LRU of whole sequences evicts them"
NOT_OURS = {
    "TestServer.test_handle_models": HUB,
    "TestLRUPromptCache.test_lru": MOCK,
    "TestLRUPromptCache.test_lru_bytes": MOCK,
    "TestLRUPromptCache.test_insert_trimmable_cache_removes_immediate_prefix": MOCK,
    "TestLRUPromptCache.test_insert_empty_tokens_does_not_self_destruct": MOCK,
}


def tests_of(file: Path, model: Path) -> unittest.TestSuite:
    """The file's tests, in whose names our cache and our model are."""
    load = mlx_lm.utils.load
    mlx_lm.server.LRUPromptCache = TieredPromptCache
    mlx_lm.utils.load = lambda _hub_id, *rest, **options: load(str(model), *rest, **options)
    spec = importlib.util.spec_from_file_location("upstream_test_server", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def short(test: Any) -> str:
    """Class and method of a test."""
    return ".".join(test.id().split(".")[-2:])


def main(file: Path) -> int:
    """Run, print what failed and why it may, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model", "qwen2", hidden_size=256)
        ended = unittest.TextTestRunner(verbosity=0, buffer=True).run(tests_of(file, model))
    failed = {short(test) for test, _trace in [*ended.failures, *ended.errors]}
    print(f"mlx-lm {mlx_lm.__version__}: {ended.testsRun - len(failed)} of {ended.testsRun} pass")
    for name in sorted(failed & NOT_OURS.keys()):
        print(f"  not applicable: {name}: {NOT_OURS[name]}")
    wrong = failed ^ NOT_OURS.keys()
    for name in sorted(wrong):
        print(f"  {'fails' if name in failed else 'passes, and is said not to'}: {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
