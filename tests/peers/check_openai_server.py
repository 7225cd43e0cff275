"""Check mlx-openai-server with this cache in place; exits with 1 and the names of what fails.

Its handler is made as the server makes it and asked as its endpoints ask: with this cache, with its
own, and with none. The texts must be the same, and no fewer tokens taken from this cache.
`make test-peers` installs the package in an environment of its own, without what text models do not
need.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
import tempfile
import traceback
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config import ModelEntryConfig
from app.schemas.openai import ChatCompletionRequest
from app.server import create_handler_from_config
from app.utils.prompt_cache import LRUPromptCache
from loguru import logger

from kit.tinylm import make_model
from omlx_cache import BlockStore, CacheSettings
from omlx_cache.integrations.openai_server import HandlerPromptCache, install

SYSTEM = "You are a helpful assistant who answers briefly and to the point. " * 5
OURS, THEIRS, NONE = "ours", "theirs", "none"
AGAIN = " after a restart"


@dataclass(frozen=True)
class Turn:
    """What was answered, and how many tokens of the prompt were not computed."""

    text: str
    prompt: int
    cached: int


def _without_outlines() -> None:
    """Outlines is for JSON schemas only, and would bring torch."""
    for name in ("outlines", "outlines.processors", "outlines.models"):
        sys.modules[name] = types.ModuleType(name)
    tokenizers: Any = types.ModuleType("outlines.models.transformers")
    tokenizers.TransformerTokenizer = type("T", (), {"__init__": lambda self, inner: None})
    processors: Any = sys.modules["outlines.processors"]
    processors.JSONLogitsProcessor = None
    sys.modules["outlines.models.transformers"] = tokenizers


class NoCache(LRUPromptCache):
    """Their cache, which never finds anything."""

    def fetch_nearest_cache(self, tokens_ids: list[int], **_: Any) -> tuple[None, list[int]]:
        return None, tokens_ids

    def insert_cache(self, *_: Any, **__: Any) -> None:
        pass


@dataclass(frozen=True)
class Case:
    """A model and the flags that it is served with."""

    name: str
    family: str
    flags: dict[str, Any]
    config: dict[str, Any]


ALONE = {"disable_batching": True}
PACKED = {**ALONE, "kv_bits": 8, "kv_group_size": 32}
CASES = [
    Case("dense", "qwen3", {}, {}),
    Case("hybrid", "qwen3_next", {}, {}),
    Case("windowed", "ministral3", {}, {}),
    Case("hybrid, alone", "qwen3_next", ALONE, {}),
    Case("quantised", "qwen3", PACKED, {"head_dim": 32}),
    Case("bounded", "qwen3", {**ALONE, "context_length": 512}, {}),
]


@asynccontextmanager
async def serving(
    case: Case, model: Path, kind: str, home: Path, store: BlockStore | None = None
) -> AsyncIterator[Any]:
    """A handler as the server starts and ends it; `home` is where its cache keeps files."""
    config = ModelEntryConfig(
        model_path=str(model), model_type="lm", prompt_cache_dir=str(home / "own"), **case.flags
    )
    handler = create_handler_from_config(config)
    await handler.initialize({"timeout": 60, "queue_size": 100})
    own = None
    if kind == OURS:
        own = None if store else open_store(home)
        install(handler, store or own)
    elif kind == NONE:
        handler.prompt_cache = NoCache()
    try:
        yield handler
    finally:
        await handler.cleanup()
        if own is not None:
            # The server gives its handlers no more time than `cleanup` takes.
            assert own.stats().writer.pending_bytes == 0
            own.close()


def open_store(home: Path) -> BlockStore:
    return BlockStore(
        CacheSettings(
            cold_dir=home / "cold",
            hot_bytes="512MiB",
            cold_bytes="2GiB",
            min_free_bytes=0,
            socket="off",
            worth_reading="off",
        )
    )


def request(messages: Sequence[dict[str, str]], **options: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(
        model="m", messages=list(messages), **{"temperature": 0.0, "max_tokens": 12, **options}
    )


async def ask(handler: Any, messages: Sequence[dict[str, str]], **options: Any) -> Turn:
    reply = await handler.generate_text_response(request(messages, **options))
    response, usage = reply["response"], reply["usage"]
    text = response if isinstance(response, str) else response["content"]
    return Turn(text or "", usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)


async def converse(handler: Any, topic: str, turns: int = 3) -> list[Turn]:
    """A chat that sends back what was said before."""
    messages = [{"role": "system", "content": f"{topic}. {SYSTEM}"}]
    said = []
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number} about {topic}?"})
        said.append(await ask(handler, messages))
        messages.append({"role": "assistant", "content": said[-1].text})
    return said


async def branch(handler: Any) -> list[Turn]:
    """The same beginning with two ends, then the first again."""
    begin = [{"role": "system", "content": f"branches. {SYSTEM}"}]
    ends = ["What is a tree of many words and more?", "What is a tree of no words?"]
    return [
        await ask(handler, [*begin, {"role": "user", "content": end}]) for end in (*ends, ends[0])
    ]


async def abort(handler: Any) -> list[Turn]:
    """A stream that its client leaves, then the same prompt to its end, twice."""
    messages = [
        {"role": "system", "content": f"aborts. {SYSTEM}"},
        {"role": "user", "content": "Tell a long story."},
    ]
    stream = handler.generate_text_stream(request(messages, stream=True, max_tokens=200))
    async for _ in stream:
        break
    await stream.aclose()
    return [await ask(handler, messages), await ask(handler, messages)]


TURNS_AT_ONCE = 2


async def at_once(handler: Any) -> list[Turn]:
    """Three conversations in one batch; without a cache one after the other, since this mlx-lm
    computes a row that joins a batch otherwise than alone."""
    chats = [converse(handler, f"chat {i}", TURNS_AT_ONCE) for i in range(3)]
    if isinstance(handler.prompt_cache, NoCache):
        return [turn for chat in chats for turn in await chat]
    return [turn for chat in await asyncio.gather(*chats) for turn in chat]


SCENARIOS: dict[str, Callable[[Any], Coroutine[Any, Any, list[Turn]]]] = {
    "several turns": lambda handler: converse(handler, "ships"),
    "a branch": branch,
    "an abort": abort,
    "several at once": at_once,
}
BATCHED = "several at once"


def compare(where: str, ours: list[Turn], theirs: list[Turn], plain: list[Turn]) -> str:
    """Return the hit tokens of both; raises AssertionError for another text or fewer hits."""
    for number, (mine, turn) in enumerate(zip(ours, plain, strict=True)):
        assert mine.text == turn.text, f"{where}, turn {number}: {mine.text!r} != {turn.text!r}"
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if BATCHED in where and number % TURNS_AT_ONCE == 0:
            # What another conversation had stored by then is chance.
            continue
        hits = f"{mine.cached} of {mine.prompt} < {other.cached} of {other.prompt}"
        assert mine.cached >= other.cached, f"{where}, turn {number}: {hits}"
    total = sum(turn.prompt for turn in ours)
    counts = (sum(turn.cached for turn in turns) for turns in (ours, theirs))
    return " ".join(f"{count}/{total}" for count in counts)


async def check(case: Case, root: Path) -> None:
    """Every scenario with each cache, and once more after a restart."""
    model = make_model(root / "model", case.family, **case.config)
    said: dict[str, dict[str, list[Turn]]] = {}
    scenarios = [name for name in SCENARIOS if not (case.flags and name == BATCHED)]
    for kind in (NONE, THEIRS, OURS):
        for start in ("", AGAIN)[: 1 if kind == NONE else 2]:
            async with serving(case, model, kind, root / kind) as handler:
                for name in scenarios:
                    said.setdefault(name + start, {})[kind] = await SCENARIOS[name](handler)
    for name, turns in said.items():
        where = f"{case.name}: {name}"
        plain = said[name.removesuffix(AGAIN)][NONE]
        if case.name == "quantised":
            # A prompt's first chunk is packed when it has been computed: where the next one begins
            # is part of what is computed, and a hit moves it, of their cache as of this one.
            plain = turns[THEIRS]
        line = compare(where, turns[OURS], turns[THEIRS], plain)
        print(f"  {where}: hit tokens ours, theirs: {line}")
    again = said["several turns" + AGAIN]
    assert again[OURS][0].cached > 0.9 * again[OURS][0].prompt, again[OURS]
    assert again[THEIRS][0].cached == 0


async def check_two_models(root: Path) -> None:
    """Two models in one process and one store, asked in turn with the same prompts."""
    case = CASES[0]
    models = [make_model(root / str(seed), "qwen3", seed=seed) for seed in (1, 2)]
    alone = []
    for model in models:
        async with serving(case, model, NONE, root / "none") as handler:
            alone.append(await converse(handler, "models"))
    store = open_store(root)
    async with (
        serving(case, models[0], OURS, root / "a", store) as first,
        serving(case, models[1], OURS, root / "b", store) as second,
    ):
        both = await asyncio.gather(converse(first, "models"), converse(second, "models"))
    store.close()
    for mine, plain in zip(both, alone, strict=True):
        assert [turn.text for turn in mine] == [turn.text for turn in plain]
        assert mine[0].cached == 0 < mine[1].cached
    print("  two models: texts as each alone")


async def check_draft_model(root: Path) -> None:
    """A draft model's caches are restored with the target's. Their own cache is left out: it keeps
    them under one token more than they hold, and answers other texts from the third turn on."""
    model, draft = (make_model(root / str(seed), "qwen3", seed=seed) for seed in (1, 2))
    case = Case("draft model", "qwen3", {"draft_model_path": str(draft)}, {})
    said = []
    for kind in (NONE, OURS, OURS):
        async with serving(case, model, kind, root / kind) as handler:
            said.append(await converse(handler, "drafts"))
    for turns in said[1:]:
        assert [turn.text for turn in turns] == [turn.text for turn in said[0]]
    assert said[1][2].cached > said[1][1].prompt
    assert said[2][0].cached == said[2][0].prompt - 1
    print("  a draft model: texts as without a cache, restored after a restart")


async def check_interface(root: Path) -> None:
    """What the server reads and calls beside fetch and insert."""
    model = make_model(root / "model", "qwen3")
    async with serving(CASES[0], model, OURS, root) as handler:
        cache = handler.prompt_cache
        assert isinstance(cache, HandlerPromptCache)
        await converse(handler, "figures")
        while (await handler.get_queue_stats())["batch_stats"]["active_requests"]:
            await asyncio.sleep(0.01)  # An answer is stored after its last word was sent.
        assert len(cache) == 1
        assert cache.nbytes > 0
        assert cache.stats_by_type()["assistant"]["n_sequences"] == 1
        cache.log_cache_stats()
        cache.close()
        cache.trim_to(n_bytes=0)
        assert cache.nbytes == 0
        again = await converse(handler, "figures", 1)
        assert again[0].cached == again[0].prompt - 1, "read back from the disk"
        cache.clear()
    print("  figures and trims")


async def everything() -> list[str]:
    failed = []
    jobs: list[tuple[str, Callable[[Path], Coroutine[Any, Any, None]]]] = [
        (case.name, lambda root, case=case: check(case, root)) for case in CASES
    ]
    jobs += [
        ("two models", check_two_models),
        ("draft model", check_draft_model),
        ("interface", check_interface),
    ]
    for name, job in jobs:
        with tempfile.TemporaryDirectory() as root:
            try:
                await job(Path(root))
            except AssertionError as error:
                line = traceback.extract_tb(error.__traceback__)[-1].lineno
                failed.append(f"{name}, line {line}: {error}")
                print(f"FAILED {failed[-1]}")
    return failed


def main() -> int:
    _without_outlines()
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    versions = {name: importlib.metadata.version(name) for name in ("mlx-openai-server", "mlx-lm")}
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    failed = asyncio.run(everything())
    print(f"{len(failed)} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
