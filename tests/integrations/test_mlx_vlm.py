"""mlx-vlm's integration without mlx-vlm: what is imported, and which prompts are apart."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from omlx_cache import BlockStore, CacheSettings
from omlx_cache.integrations.mlx_vlm import install, sequences
from omlx_cache.integrations.mlx_vlm.launch import around
from omlx_cache.integrations.mlx_vlm.sequences import KvForm, marked, with_media

from .conftest import model_of, prompt_of

WITHOUT = """
import sys
sys.modules["mlx_lm"] = sys.modules["mlx_vlm"] = None
import omlx_cache.integrations.mlx_vlm
import omlx_cache.integrations.mlx_vlm.launch
from omlx_cache import BlockStore, PrefixCache, Session
"""


def test_neither_mlx_lm_nor_mlx_vlm_is_imported_before_it_is_used() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


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


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for mlx-vlm's own hash of inputs."""
    apc: Any = ModuleType("mlx_vlm.apc")
    apc._hash_payload = lambda value: hash(repr(getattr(value, "tolist", lambda: value)()))
    apc._stable_int_hash = lambda *parts: hash(parts)
    monkeypatch.setitem(sys.modules, "mlx_vlm", ModuleType("mlx_vlm"))
    monkeypatch.setitem(sys.modules, "mlx_vlm.apc", apc)


@pytest.mark.usefixtures("hashes")
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("input_audio_embeds", (1, 20, 80)),
        ("input_audio_embeds", (1, 80, 64)),
        ("image_grid_thw", (1, 3)),
        ("spatial_shapes", (1, 2)),
        ("aspect_ratio_ids", (1, 1)),
        ("second_per_grid_ts", (1,)),
    ],
)
def test_what_is_seen_or_heard_beside_the_tokens_sets_prompts_apart(
    name: str, shape: tuple[int, ...]
) -> None:
    # A prompt with as many tokens as the sound has numbers in a frame.
    embeds = mx.zeros((1, 80, 4))
    one, other = (with_media(7, {name: mx.full(shape, n), "inputs_embeds": embeds}) for n in (1, 2))
    assert len({one, other, 7}) == 3


@pytest.mark.usefixtures("hashes")
def test_what_is_made_from_the_tokens_leaves_the_hash() -> None:
    embeds, mask = mx.zeros((1, 80, 4)), mx.ones((1, 80), mx.bool_)
    assert with_media(7, {"images_seq_mask": mask, "inputs_embeds": embeds}) == 7
    assert with_media(7, {"position_ids": mx.arange(80), "inputs_embeds": embeds}) == 7


def test_another_version_of_mlx_vlm_has_pages_of_its_own(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: Any = ModuleType("mlx_vlm.models.cache")
    caches.make_prompt_cache = make_prompt_cache
    monkeypatch.setitem(sys.modules, "mlx_vlm", ModuleType("mlx_vlm"))
    monkeypatch.setitem(sys.modules, "mlx_vlm.models", ModuleType("mlx_vlm.models"))
    monkeypatch.setitem(sys.modules, "mlx_vlm.models.cache", caches)
    model, tokens = model_of("qwen3"), prompt_of(100)
    held = make_prompt_cache(model)
    mx.eval(model(mx.array([tokens]), cache=held))
    found = []
    for version in ("0.7.10", "0.7.11", "0.7.10"):
        monkeypatch.setattr(sequences, "version_of", lambda _name, version=version: version)
        one = sequences.Sequences(model, store, KvForm(), whole=model)
        found.append(one.restore([*tokens, 7], 0, lambda length: True)[0].point.position > 0)
        assert one.store(tokens, held, 0)
    assert found == [False, False, True]


def test_nothing_else_than_what_generates_takes_the_cache() -> None:
    with (
        BlockStore(CacheSettings(hot_cache_only=True, socket="off")) as store,
        pytest.raises(TypeError, match="BatchGenerator, ResponseGenerator or"),
    ):
        install(object(), store)


def test_a_model_is_only_around_its_own_language_model() -> None:
    inner = object()
    whole = SimpleNamespace(language_model=inner)
    assert around(whole, inner) is whole
    assert around(whole, object()) is None
    assert around(None, inner) is None
