"""Check mlx-openai-server with this cache in place; exits with 1 and the names of what fails.

Its handler is made as the server makes it and asked as its endpoints ask: with this cache, with its
own, and with none. The texts must be the same, and no fewer tokens taken from this cache.
`make test-peers` installs the package in an environment of its own, without what text models do not
need.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config import ModelEntryConfig
from app.schemas.openai import ChatCompletionRequest
from app.server import create_handler_from_config
from app.utils.prompt_cache import LRUPromptCache
from checking import hidden, run_checks
from driving import store_in
from loguru import logger

from kit.tinylm import make_model
from omlx_cache.integrations.host_server import OPENAI_HANDLER
from omlx_cache.integrations.openai_server import install

SYSTEM = "You are a helpful assistant who answers briefly and to the point. " * 5
OURS, THEIRS, NONE = "ours", "theirs", "none"
AGAIN = " after a restart"


@dataclass(frozen=True)
class Reply:
    """What was answered, and how many tokens of the prompt were not computed."""

    text: str
    prompt: int
    cached: int


class NoCache(LRUPromptCache):
    """Their cache, which never finds anything."""

    def fetch_nearest_cache(self, tokens_ids: list[int], **_: Any) -> tuple[None, list[int]]:
        return None, tokens_ids

    def insert_cache(self, *_: Any, **__: Any) -> None:
        pass


@dataclass(frozen=True)
class ServedModel:
    """A model and the flags that it is served with."""

    name: str
    family: str
    flags: dict[str, Any]
    config: dict[str, Any]


ALONE = {"disable_batching": True}
PACKED = {**ALONE, "kv_bits": 8, "kv_group_size": 32}
CASES = [
    ServedModel("dense", "qwen3", {}, {}),
    ServedModel("hybrid", "qwen3_next", {}, {}),
    ServedModel("windowed", "ministral3", {}, {}),
    ServedModel("hybrid, alone", "qwen3_next", ALONE, {}),
    ServedModel("quantised", "qwen3", PACKED, {"head_dim": 32}),
    ServedModel("bounded", "qwen3", {**ALONE, "context_length": 512}, {}),
]


@asynccontextmanager
async def serving(case: ServedModel, model: Path, kind: str, home: Path) -> AsyncIterator[Any]:
    """A handler as the server starts and ends it; `home` is where its cache keeps files."""
    config = ModelEntryConfig(
        model_path=str(model), model_type="lm", prompt_cache_dir=str(home / "own"), **case.flags
    )
    handler = create_handler_from_config(config)
    await handler.initialize({"timeout": 60, "queue_size": 100})
    if kind == NONE:
        handler.prompt_cache = NoCache()
    with ExitStack() as stack:
        if kind == OURS:
            store = stack.enter_context(store_in(home / "cold", worth_reading="off"))
            install(handler, store)
        yield handler
        await handler.cleanup()
        # The server gives its handlers no more time than `cleanup` takes.
        assert kind != OURS or store.stats().writer.pending_bytes == 0


def request(messages: Sequence[dict[str, str]], **options: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(
        model="m", messages=list(messages), **{"temperature": 0.0, "max_tokens": 12, **options}
    )


async def ask(handler: Any, messages: Sequence[dict[str, str]], **options: Any) -> Reply:
    reply = await handler.generate_text_response(request(messages, **options))
    response, usage = reply["response"], reply["usage"]
    text = response if isinstance(response, str) else response["content"]
    return Reply(text or "", usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens)


async def converse(handler: Any, topic: str, turns: int = 3) -> list[Reply]:
    """A chat that sends back what was said before."""
    messages = [{"role": "system", "content": f"{topic}. {SYSTEM}"}]
    said = []
    for number in range(turns):
        messages.append({"role": "user", "content": f"Question {number} about {topic}?"})
        said.append(await ask(handler, messages))
        messages.append({"role": "assistant", "content": said[-1].text})
    return said


async def branch(handler: Any) -> list[Reply]:
    """The same beginning with two ends, then the first again."""
    begin = [{"role": "system", "content": f"branches. {SYSTEM}"}]
    ends = ["What is a tree of many words and more?", "What is a tree of no words?"]
    return [
        await ask(handler, [*begin, {"role": "user", "content": end}]) for end in (*ends, ends[0])
    ]


async def abort(handler: Any) -> list[Reply]:
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


async def at_once(handler: Any) -> list[Reply]:
    """Three conversations in one batch; without a cache one after the other, since this mlx-lm
    computes a row that joins a batch otherwise than alone."""
    chats = [converse(handler, f"chat {i}", TURNS_AT_ONCE) for i in range(3)]
    if isinstance(handler.prompt_cache, NoCache):
        return [turn for chat in chats for turn in await chat]
    return [turn for chat in await asyncio.gather(*chats) for turn in chat]


SCENARIOS: dict[str, Callable[[Any], Coroutine[Any, Any, list[Reply]]]] = {
    "several turns": lambda handler: converse(handler, "ships"),
    "a branch": branch,
    "an abort": abort,
    "several at once": at_once,
}
BATCHED = "several at once"


def compare(where: str, ours: list[Reply], theirs: list[Reply], plain: list[Reply]) -> str:
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


async def check(case: ServedModel, root: Path) -> None:
    """Every scenario with each cache, and with ours once more after a restart; with theirs of the
    first case only, since nothing of it outlives its process."""
    model = make_model(root / "model", case.family, **case.config)
    said: dict[str, dict[str, list[Reply]]] = {}
    scenarios = [name for name in SCENARIOS if not (case.flags and name == BATCHED)]
    restarted = {OURS, THEIRS} if case is CASES[0] else {OURS}
    for kind in (NONE, THEIRS, OURS):
        for start in ("", AGAIN) if kind in restarted else ("",):
            async with serving(case, model, kind, root / kind) as handler:
                for name in scenarios:
                    said.setdefault(name + start, {})[kind] = await SCENARIOS[name](handler)
    for name, turns in said.items():
        where = f"{case.name}: {name}"
        first = said[name.removesuffix(AGAIN)]
        plain, theirs = first[NONE], turns.get(THEIRS, first[THEIRS])
        if case.name == "quantised":
            # A prompt's first chunk is packed when it has been computed: where the next one begins
            # is part of what is computed, and a hit moves it, of their cache as of this one.
            plain = theirs
        line = compare(where, turns[OURS], theirs, plain)
        print(f"  {where}: hit tokens ours, theirs: {line}")
    again = said["several turns" + AGAIN]
    assert again[OURS][0].cached > 0.9 * again[OURS][0].prompt, again[OURS]
    assert THEIRS not in again or again[THEIRS][0].cached == 0


async def check_draft_model(root: Path) -> None:
    """A draft model's caches are restored with the target's. Their own cache is left out: it keeps
    them under one token more than they hold, and answers other texts from the third turn on."""
    model, draft = (make_model(root / str(seed), "qwen3", seed=seed) for seed in (1, 2))
    case = ServedModel("draft model", "qwen3", {"draft_model_path": str(draft)}, {})
    said = []
    for kind in (NONE, OURS, OURS):
        async with serving(case, model, kind, root / kind) as handler:
            said.append(await converse(handler, "drafts"))
    for turns in said[1:]:
        assert [turn.text for turn in turns] == [turn.text for turn in said[0]]
    assert said[1][2].cached > said[1][1].prompt
    assert said[2][0].cached == said[2][0].prompt - 1
    print("  a draft model: texts as without a cache, restored after a restart")


async def check_names(root: Path) -> None:
    """A handler that lacks a name answers with its own cache."""
    model = make_model(root / "model", "qwen3")
    async with serving(CASES[0], model, NONE, root) as handler:
        plain = await converse(handler, "names", 1)
    async with serving(CASES[0], model, THEIRS, root) as handler:
        with store_in(root) as store:
            for name in OPENAI_HANDLER:
                with hidden(name):
                    assert install(handler, store) is None, name
        assert [turn.text for turn in await converse(handler, "names", 1)] == [plain[0].text]


def in_a_folder(job: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Return a check that has an empty folder for as long as it runs."""

    @functools.wraps(job)
    def run() -> None:
        with tempfile.TemporaryDirectory() as root:
            asyncio.run(job(Path(root)))

    return run


async def check_cases(root: Path) -> None:
    for number, case in enumerate(CASES):
        await check(case, root / str(number))


def main() -> int:
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    versions = (f"{p} {importlib.metadata.version(p)}" for p in ("mlx-openai-server", "mlx-lm"))
    jobs = (check_cases, check_draft_model, check_names)
    return run_checks(", ".join(versions), map(in_a_folder, jobs))


if __name__ == "__main__":
    sys.exit(main())
