"""mlx-vlm's integration without mlx-vlm: what is imported, and which prompts are apart."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from omlx_cache import BlockStore, CacheSettings
from omlx_cache.integrations.mlx_vlm import ApcManager, install
from omlx_cache.integrations.mlx_vlm.marks import marked
from omlx_cache.integrations.mlx_vlm.placing import around, model_name

WITHOUT = """
import sys
sys.modules["mlx_lm"] = sys.modules["mlx_vlm"] = None
import omlx_cache.integrations.mlx_vlm
import omlx_cache.integrations.mlx_vlm.launch
from omlx_cache import BlockStore, PrefixCache, Session
"""


def test_neither_mlx_lm_nor_mlx_vlm_is_imported_before_it_is_used() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


def test_a_prompt_of_text_alone_is_keyed_by_its_own_tokens() -> None:
    assert marked([5, 6, 7], 0).tolist() == [5, 6, 7]


def test_a_hash_sets_a_prompt_apart_from_its_first_token_on() -> None:
    hashes = (1, -1, 1 << 62, -(1 << 63))
    marks = [marked([5, 6, 7], extra).tolist() for extra in hashes]
    firsts = {tokens[0] for tokens in marks} | {marked([6], 1).tolist()[0]}
    assert len(firsts) == len(hashes) + 1
    assert all(first < 0 for first in firsts)
    assert all(tokens[1:] == [6, 7] for tokens in marks)


def test_a_hash_means_the_same_in_every_process_unless_it_shall_not() -> None:
    assert marked([5, 6], 9).tolist() == marked([5, 6], 9).tolist()
    assert marked([5, 6], 9, b"a").tolist() != marked([5, 6], 9, b"b").tolist()


def test_nothing_else_than_what_generates_takes_the_cache() -> None:
    with (
        BlockStore(CacheSettings(hot_cache_only=True, socket="off")) as store,
        pytest.raises(TypeError, match="BatchGenerator, ResponseGenerator or"),
    ):
        install(object(), store)


def test_a_manager_without_a_generator_finds_and_keeps_nothing() -> None:
    with BlockStore(CacheSettings(hot_cache_only=True, socket="off")) as store:
        manager = ApcManager(store)
        assert manager.lookup_prefix([1, 2, 3]) == ([], 0)
        assert manager.lookup_exact_cache([1, 2, 3], extra_hash=4) == (None, 0)
        assert not manager.store_exact_cache([1, 2, 3], [object()])
        assert manager.store_kv_blocks([1, 2, 3], [], []) == []
        manager.clear()
        manager.close()
        assert not store.closed
        assert manager.stats_snapshot()["hits"] == 0


def test_a_model_is_only_around_its_own_language_model() -> None:
    inner = object()
    whole = SimpleNamespace(language_model=inner)
    assert around(whole, inner) is whole
    assert around(whole, object()) is None
    assert around(None, inner) is None


def test_a_model_is_called_by_its_folder_or_its_name_on_the_hub(tmp_path: object) -> None:
    assert model_name(f"{tmp_path}") == str(tmp_path).rsplit("/", 1)[1]
    assert model_name("org/name") == "org/name"
    assert model_name("") is None
