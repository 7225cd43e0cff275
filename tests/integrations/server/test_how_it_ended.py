"""A server knows how its answers ended from what its clients are sent."""

from queue import Queue
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import make_text_state_machine
from mlx_lm.server import GenerationContext, Response

from kit import zoo
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.integrations.mlx_lm.models import LoadedModel
from omlx_cache.integrations.mlx_lm.requests import ServedRequest
from omlx_cache.integrations.mlx_lm.served_cache import ServedPromptCache
from omlx_cache_storage.hot import HotTier

PATIENCE_NS = 25_000_000_000


def end(pieces: list[str], reason: str, *, tools: bool = True, offered: bool = True) -> Any:
    """How an answer ended, as the cache hears it before the answer is inserted."""
    tokenizer = SimpleNamespace(
        has_thinking=True,
        think_start="<think>",
        think_end="</think>",
        has_tool_calling=tools,
        tool_call_start="<tool_call>",
        tool_call_end="</tool_call>",
        response_transitions={},
        structural_markers=[],
    )
    ends: list[Any] = []
    request = ServedRequest(ends.append, offered)
    request.queue = Queue()
    machine = make_text_state_machine(tokenizer)
    request.put(GenerationContext(tools, True, None, machine, "normal", [1]))
    for piece in pieces[:-1]:
        request.put(Response(piece, 1, 0.0, None, ()))
        assert not ends
    request.put(Response(pieces[-1], 1, 0.0, reason, ()))
    return ends[0]


@pytest.mark.parametrize(
    ("pieces", "reason", "ended"),
    [
        (["It is", " done.", ""], "stop", "turn"),
        (["Let me see <tool", "_call>{}", "</tool_call>", ""], "stop", "tool_call"),
        (["<tool_call>{}", ""], "stop", "tool_call"),
        (["<tool_call>{"], "length", "length"),
        (["A <tool_cal", "l is one", ""], "stop", "turn"),
    ],
)
def test_a_client_that_offers_tools_is_back_when_one_is_called(
    pieces: list[str], reason: str, ended: str
) -> None:
    assert end(pieces, reason) == ended


def test_thinking_is_no_call() -> None:
    pieces = ["<think>I could call a tool</think>", "No.", ""]
    assert end(pieces, "stop") == "turn"


def test_nothing_is_guessed_for_a_client_that_offers_no_tools() -> None:
    assert end(["It is done.", ""], "stop", offered=False) is None
    assert end(["It is done."], "length", offered=False) == "length"


def test_nothing_is_guessed_where_mlx_lm_does_not_say_what_a_tool_call_is() -> None:
    assert end(["It is done.", ""], "stop", tools=False) is None


def test_the_answer_that_is_stored_next_is_the_one_whose_end_was_read(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HotTier, "patience_ns", PATIENCE_NS)
    model = zoo.build("llama")
    settings = CacheSettings(hot_cache_only=True, hot_bytes="64MiB", socket="off", block_size=32)
    with BlockStore(settings) as store:
        key = ("m", None, None)
        prompts = ServedPromptCache(store, LoadedModel(key, model), fetched=lambda found: None)
        ends: tuple[Any, ...] = ("turn", "tool_call", None)
        for seed, ended in enumerate(ends):
            tokens = mx.random.randint(0, 256, (64,), key=mx.random.key(seed)).tolist()
            prompts.fetch_nearest_cache(key, tokens)
            caches = prompts.fresh(key)
            model(mx.array([tokens]), cache=caches)
            prompts.note_end(ended)
            prompts.insert_cache(key, tokens, caches, cache_type="assistant")
        by_age = [entry.meta.position for entry in store.hot.entries()]
        stamps = [entry.stamp_ns for entry in store.hot.entries()]
        assert by_age == [64, 32] * 3
        assert stamps[2] - stamps[1] > PATIENCE_NS - 10_000_000_000
        assert stamps[4] - stamps[3] < 10_000_000_000
