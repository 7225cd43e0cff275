"""HandlerPromptCache: the calls of mlx-openai-server's scheduler and handler, on a shared store.

`tests/peers/check_openai_server.py` drives the server itself.
"""

import pickle
import sys
import types
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, make_prompt_cache

from kit import zoo
from omlx_cache import BlockStore
from omlx_cache.integrations.host_server import OPENAI_SCHEDULER
from omlx_cache.integrations.launching import open_store as the_store
from omlx_cache.integrations.mlx_lm import LoadedModel
from omlx_cache.integrations.openai_server import HandlerPromptCache, install, launch
from omlx_cache.integrations.openai_server import prompt_cache as module

from .conftest import Open, prompt_of

BATCH, ALONE = {"batch"}, {"nonbatch"}


@pytest.fixture(scope="module", params=["qwen3", "qwen3_next", "ministral3"])
def model(request: pytest.FixtureRequest) -> Any:
    return zoo.build(request.param)


@pytest.fixture(scope="module")
def dense() -> Any:
    return zoo.build("qwen3")


def cache_for(store: BlockStore, model: Any, **options: Any) -> HandlerPromptCache:
    return HandlerPromptCache(store, LoadedModel("a model", model), **options)


def computed(model: Any, tokens: list[int], caches: list[Any] | None = None) -> list[Any]:
    caches = make_prompt_cache(model) if caches is None else caches
    mx.eval(model(mx.array([tokens]), cache=caches))
    return caches


def logits(model: Any, tokens: list[int], caches: list[Any]) -> mx.array:
    return model(mx.array([tokens]), cache=caches)[0, -1]


@pytest.mark.parametrize("source", ["batch", "nonbatch"])
def test_a_sequence_is_found_by_the_next_turn_and_after_a_restart_whoever_stored_it(
    source: str, model: Any, open_store: Open
) -> None:
    tokens = prompt_of(150)
    cache = cache_for(open_store(), model)
    cache.insert_cache(tokens, computed(model, tokens), source=source)
    expected = logits(model, [*tokens, 5, 6], make_prompt_cache(model))
    for again in (False, True):
        if again:
            cache.close()
            cache = cache_for(open_store(worth_reading="off"), model)
        for allowed in (BATCH, ALONE, None):
            found, rest = cache.fetch_nearest_cache([*tokens, 5, 6], allowed_sources=allowed)
            assert (rest, found is None) == ([5, 6], False)
            assert mx.allclose(logits(model, rest, found), expected, atol=1e-4)


def test_a_batch_gets_no_packed_caches(store: BlockStore) -> None:
    model = zoo.build("llama")
    tokens = prompt_of(100)
    cache = cache_for(store, model, kv_bits=4, kv_group_size=32, quantized_kv_start=0)
    packed = [layer.to_quantized(32, 4) for layer in computed(model, tokens)]
    cache.insert_cache(tokens, packed)
    assert cache.fetch_nearest_cache([*tokens, 1], allowed_sources=ALONE)[1] == [1]
    found, rest = cache.fetch_nearest_cache([*tokens, 1], allowed_sources=BATCH)
    assert all(layer.empty() for layer in found or [])
    assert rest == [*tokens, 1]


def test_a_row_of_a_batch_that_would_be_computed_wrong_begins_with_caches_of_ours(
    dense: Any, store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, tokens = cache_for(store, dense), prompt_of(100)
    monkeypatch.setattr(module, "is_old", lambda: True)
    found, rest = cache.fetch_nearest_cache(tokens, allowed_sources=BATCH)
    assert rest == tokens
    assert [layer.empty() for layer in found or []] == [True, True]
    assert cache.fetch_nearest_cache(tokens, allowed_sources=ALONE) == (None, tokens)
    cache.insert_cache(tokens, computed(dense, tokens))
    found, _rest = cache.fetch_nearest_cache(tokens, allowed_sources=BATCH)
    assert all(isinstance(layer, KVCache) and type(layer) is not KVCache for layer in found or [])


def test_caches_that_the_server_bounds_are_kept_as_it_bounds_them(
    dense: Any, store: BlockStore
) -> None:
    cache = HandlerPromptCache(store, LoadedModel("a model", dense, max_kv_size=64))
    tokens = prompt_of(200)
    bounded = computed(dense, tokens, make_prompt_cache(dense, 64))
    expected = logits(dense, [9], computed(dense, tokens, make_prompt_cache(dense, 64)))
    cache.insert_cache(tokens, bounded)
    found, rest = cache.fetch_nearest_cache([*tokens, 9])
    assert (rest, [layer.max_size for layer in found or []]) == ([9], [64, 64])
    assert found is not None
    assert mx.allclose(logits(dense, rest, found), expected, atol=1e-4)


def test_figures_and_trims_are_of_memory(dense: Any, store: BlockStore) -> None:
    cache, tokens = cache_for(store, dense, max_size=3, max_bytes=1 << 63), prompt_of(100)
    assert (len(cache), cache.max_size, cache.max_bytes) == (0, 3, 1 << 63)
    cache.insert_cache(tokens, computed(dense, tokens), cache_type="user")
    assert (len(cache), cache.stats_by_type()["user"]["n_sequences"]) == (1, 1)
    assert cache.nbytes == store.stats().hot.nbytes > 0
    cache.close()
    cache.trim_to(n_bytes=0)
    assert (cache.nbytes, store.closed) == (0, False)
    assert cache.fetch_nearest_cache(tokens)[1] == tokens[-1:], "the disk has it"
    cache.clear()
    cache.insert_cache([1, 2, 3], [object()])
    assert (cache.nbytes, cache.fetch_nearest_cache([1])) == (0, (None, [1]))


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Stands for the server's modules, of which `launch` replaces two functions."""
    server: Any = types.ModuleType("app.server")
    server.create_handler_from_config = lambda config: types.SimpleNamespace(handler_type=config)
    core: Any = types.ModuleType("app.core")
    worked: list[Any] = []
    core.handler_process = process = types.ModuleType("app.core.handler_process")
    process._handler_worker = lambda *arguments: worked.append(arguments)  # type: ignore[attr-defined]
    package: Any = types.ModuleType("app")
    package.server, package.core = server, core
    for part in (package, server, core, process):
        monkeypatch.setitem(sys.modules, part.__name__, part)
    return types.SimpleNamespace(server=server, process=process, worked=worked)


def test_only_text_models_get_the_cache(
    app: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[Any] = []
    from omlx_cache.integrations import openai_server

    monkeypatch.setattr(
        openai_server, "install", lambda *given: installed.append(given), raising=False
    )
    launch.place(lambda: "a store")  # type: ignore[arg-type, return-value]
    handlers = [app.server.create_handler_from_config(kind) for kind in ("lm", "whisper")]
    assert installed == [(handlers[0], "a store")]


def test_a_spawned_process_puts_the_cache_in_place_and_then_works(
    app: types.SimpleNamespace,
) -> None:
    original = app.server.create_handler_from_config
    theirs = app.process._handler_worker
    launch.place(the_store)
    handed = pickle.loads(pickle.dumps(app.process._handler_worker))
    assert isinstance(handed, partial)
    # The child imports everything anew.
    app.server.create_handler_from_config, app.process._handler_worker = original, theirs
    handed("a configuration", "queues")
    assert app.worked == [("a configuration", "queues")]
    assert app.server.create_handler_from_config is not original


@pytest.fixture
def scheduler_class(app: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for the server's BatchScheduler, with the fields that `install` reads."""
    handlers: Any = types.ModuleType("app.handler.mlx_lm")
    handlers.MLXLMHandler = type("MLXLMHandler", (), {})
    monkeypatch.setitem(sys.modules, "app.handler", types.ModuleType("app.handler"))
    monkeypatch.setitem(sys.modules, "app.handler.mlx_lm", handlers)
    fields = {"_prompt_cache": None, "_max_kv_size": None, "_batch_generator": None}
    made = type("BatchScheduler", (), {**fields, "_prefill_batch_size": 8})
    sys.modules["app.core"].BatchScheduler = made  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(("family", "together"), [("qwen3_next", 8), ("jamba", 1), ("qwen3", 8)])
def test_prompts_of_a_model_that_takes_padding_for_tokens_are_computed_one_after_the_other(
    family: str, together: int, scheduler_class: Any, store: BlockStore
) -> None:
    scheduler = scheduler_class()
    scheduler._model = zoo.build(family)
    cache = install(scheduler, store)
    assert (scheduler._prompt_cache, scheduler._prefill_batch_size) == (cache, together)


def test_a_scheduler_that_lacks_a_name_keeps_its_own_cache(
    scheduler_class: Any, store: BlockStore
) -> None:
    for name in OPENAI_SCHEDULER:
        scheduler = scheduler_class()
        scheduler._model = zoo.build("qwen3")
        with pytest.MonkeyPatch.context() as patch:
            if hasattr(scheduler_class, field := name.attribute.split(".")[-1]):
                patch.delattr(scheduler_class, field)
            else:
                del scheduler._model
            assert install(scheduler, store) is None
        assert scheduler._prompt_cache is None


def test_what_is_no_handler_is_refused(scheduler_class: Any, store: BlockStore) -> None:
    with pytest.raises(TypeError, match="MLXLMHandler or BatchScheduler, not int"):
        install(3, store)
