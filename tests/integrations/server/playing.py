"""Servers in this process whose answers are played: random weights never call a tool."""

import json
import random
import re
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from mlx_lm import server

from kit.templates import MARKERS, SPECIALS, TEMPLATES, bpe_tokenizer
from kit.tinylm import make_model
from kit.wire import connected, exchange, request
from omlx_cache import BlockStore
from omlx_cache.integrations.mlx_lm.http import HttpServer
from omlx_cache.integrations.mlx_lm.preparing import Preparing
from omlx_cache.integrations.mlx_lm.responses import Responses
from omlx_cache_storage.keys import as_tokens, shared_length
from omlx_cache_storage.stats import RequestStats

Message = dict[str, Any]
WORDS = ["the", "quick", "tests", "of", "old", "cold", "pages", "in", "memory,", "and", "17"]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CALLS = (1, 1, 2, 0, 3, 0, 1, 0, 0, 1)
"""How many tools are called in the turns of a conversation."""
_NAMED = re.compile(r"\[([^]]+)\]")
_SECONDS = 60.0


def make_chat_model(directory: Path, family: str, template: str) -> Path:
    """Write a model with a template after the ways of a family, and a tokenizer of its own."""
    corpus = [" ".join(WORDS), *TEMPLATES.values(), "user\n", "\n\n", "assistant\n<think>\n"] * 4
    made = bpe_tokenizer(TEMPLATES[template], corpus)
    make_model(directory, family, vocab_size=1024, head_dim=32)
    made.save_pretrained(str(directory))
    file = directory / "tokenizer_config.json"
    parser = "qwen3_coder" if template == "loop_stripped" else "json_tools"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tool_parser_type": parser}))
    return directory


class Answered(NamedTuple):
    """What a client was answered, how it ended, and its prompt's tokens."""

    message: Message
    reason: str | None
    prompt: int
    cached: int


class _Player:
    """Has one answer generated, token by token."""

    def __init__(self, play: "Playing") -> None:
        self._play = play
        self._answer: list[int] | None = None
        self._at = 0

    def __call__(self, tokens: Any, logits: mx.array) -> mx.array:
        if self._answer is None:
            prompt = tokens.tolist() if isinstance(tokens, mx.array) else list(tokens)
            self._answer = self._play.answer_to(prompt)
        # mlx-lm is a step ahead of what it sends.
        token = self._answer[min(self._at, len(self._answer) - 1)]
        self._at += 1
        return mx.where(mx.arange(logits.shape[-1]) == token, 0.0, -mx.inf)[None]


class Playing:
    """A server and what it answers: the last name in brackets of a prompt says which answer.

    `expected` has what was expected of the next prompts, and `waits` how many chunks were begun
    between the arrival of each request and its turn.
    """

    def __init__(self, responses: Responses, url: str) -> None:
        self.responses, self.url = responses, url
        self.answers: dict[str, list[int]] = {}
        self.expected: list[list[int]] = []
        self.prompts: list[list[int]] = []
        self.noted = threading.Semaphore(0)
        self.waits: list[int] = []
        self.begun = 0
        self.is_at_it = False

    @property
    def tokenizer(self) -> Any:
        return self.responses.model_provider.tokenizer

    @property
    def special(self) -> set[int]:
        return set(self.tokenizer.convert_tokens_to_ids([*SPECIALS, *MARKERS]))

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def answer_to(self, prompt: list[int]) -> list[int]:
        self.prompts.append(prompt)
        return self.answers[_NAMED.findall(self.tokenizer.decode(prompt))[-1]]

    def sent(self, messages: Sequence[Message], **fields: Any) -> bytes:
        """Return what a client sends."""
        body = {"messages": messages, "tools": TOOLS, "max_tokens": 1000, **fields}
        body["stream_options"] = {"include_usage": True}
        return request(json.dumps(body).encode(), "/v1/chat/completions")

    def ask(self, messages: Sequence[Message], *, stream: bool = False, **fields: Any) -> Answered:
        """Return what a client is answered."""
        answer = exchange(self.url, self.sent(messages, stream=stream, **fields), _SECONDS)
        assert answer.status == 200, answer
        return _read(answer.content.decode(), stream=stream)

    @property
    def stats(self) -> RequestStats:
        return self.responses._store.stats().requests

    def settle(self, left: int = 0) -> None:
        """Wait until what was expected after an answer is prepared, all but so many."""
        assert self.noted.acquire(timeout=_SECONDS)
        preparing = self.responses._preparing
        # In this order: what is taken out of the first is in the last once a step has ended.
        while len(preparing._expected) > left or self.is_at_it or preparing._current is not None:
            threading.Event().wait(0.005)

    def behind(self, prompt: Sequence[int], expected: Sequence[int]) -> int:
        """Return how many tokens a prompt has behind the last special token that it shares with
        what was expected."""
        shared = shared_length(as_tokens(expected), as_tokens(prompt))
        while shared and prompt[shared - 1] not in self.special:
            shared -= 1
        return len(prompt) - shared


def _read(content: str, *, stream: bool) -> Answered:
    """Put an answer together from its events, or from the whole."""
    lines = [line[6:] for line in content.splitlines() if line.startswith("data: {")]
    message: Message = {"role": "assistant", "content": ""}
    usage, reason = {}, None
    for event in map(json.loads, lines if stream else [content]):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            reason = choice["finish_reason"] or reason
            said = choice.get("delta") or choice.get("message")
            for name in ("content", "reasoning"):
                if said.get(name):
                    message[name] = message.get(name, "") + said[name]
            if "tool_calls" in said:
                message["tool_calls"] = [*message.get("tool_calls", ()), *said["tool_calls"]]
    details = usage["prompt_tokens_details"]
    return Answered(message, reason, usage["prompt_tokens"], details["cached_tokens"])


@contextmanager
def playing(
    model: Path, store: BlockStore, monkeypatch: pytest.MonkeyPatch, *flags: str
) -> Iterator[Playing]:
    """Run a server of a model in this process."""
    taken: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["mlx_lm.server", "--model", str(model), *flags])
    monkeypatch.setattr(server, "run", lambda host, port, provider: taken.append(provider))
    monkeypatch.setattr(server, "BatchGenerator", server.BatchGenerator)
    server.main()
    responses = Responses(taken[0], store, lambda name: 1 << 20)
    bound = socket.create_server(("127.0.0.1", 0))
    httpd = HttpServer(bound, responses, 32 << 20, store)
    made = Playing(responses, httpd.url)
    monkeypatch.setattr(server, "_make_logits_processors", lambda args: [_Player(made)])
    _watch(made, monkeypatch)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    try:
        assert responses.loaded.wait(_SECONDS)
        assert responses.failure is None
        yield made
    finally:
        httpd.stop_listening()
        thread.join()
        assert responses.stop(_SECONDS, threading.Event())


def _watch(made: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Note what is expected, and the chunks that are begun while a request is there."""
    expect, step, note = Responses.expect, Preparing.step, Preparing.expect

    def noted(self: Any, *arguments: Any) -> None:
        expect(self, *arguments)
        made.noted.release()

    def expected(self: Any, key: Any, tokens: Any, *arguments: Any) -> None:
        made.expected.append(list(tokens))
        note(self, key, tokens, *arguments)

    def counted(self: Any, *arguments: Any) -> None:
        made.begun += self.ready
        made.is_at_it = True
        step(self, *arguments)
        made.is_at_it = False

    monkeypatch.setattr(Responses, "expect", noted)
    monkeypatch.setattr(Preparing, "expect", expected)
    monkeypatch.setattr(Preparing, "step", counted)
    queue = made.responses.requests
    put, get = queue.put, queue.get

    def arrive(item: Any, *arguments: Any) -> None:
        put((made.begun, item), *arguments)

    def take(*arguments: Any, **options: Any) -> Any:
        begun, item = get(*arguments, **options)
        made.waits.append(made.begun - begun)
        return item

    monkeypatch.setattr(queue, "put", arrive)
    monkeypatch.setattr(queue, "get", take)
    monkeypatch.setattr(queue, "get_nowait", lambda: take(block=False))


class Client:
    """One conversation: each turn sends back what was answered, `reasoning` and all unless it is
    dropped, with what the user says or what the tools give."""

    def __init__(self, play: Playing, name: str, seed: int, *, drops: bool = True) -> None:
        self._play, self._name = play, name
        self._random = random.Random(seed)
        self._drops = drops
        self.turn = 0
        self.messages: list[Message] = [
            {"role": "system", "content": f"{name}: {self._text(40)}"},
            {"role": "user", "content": self._named("what")},
        ]

    def _text(self, most: int = 12) -> str:
        words = self._random.choices(WORDS, k=self._random.randint(most // 2, most))
        return " ".join(words)

    def _named(self, what: str) -> str:
        return f"{self._text()} [{self._name} {self.turn} {what}]"

    def _written(self, *, thinks: bool, opened: bool, xml: bool) -> list[int]:
        """What the model writes in this turn."""
        text = f"{self._text()}\n</think>\n\n" if opened else ""
        if thinks and not opened:
            text = f"<think>\n{self._text()}\n</think>\n\n"
        text += self._text()
        for number in range(CALLS[self.turn % len(CALLS)]):
            where = self._text()
            if xml:
                text += f"\n<tool_call>\n<function=look>\n<parameter=where>\n{where}\n"
                text += f"</parameter>\n<parameter=at>\n{number}\n</parameter>\n</function>\n"
            else:
                call = {"name": "look", "arguments": {"where": where, "at": number}}
                text += f"\n<tool_call>\n{json.dumps(call)}\n"
            text += "</tool_call>"
        special = [*SPECIALS, *MARKERS]
        if self._random.random() < 0.3:
            # Not as the tokenizer would write it.
            pieces = re.split("(" + "|".join(map(re.escape, special)) + ")", text)
            tokens = [
                token
                for piece in pieces
                for part in ([piece] if piece in special else piece)
                for token in self._play.encode(part)
            ]
        else:
            tokens = self._play.encode(text)
        return [*tokens, SPECIALS.index("<|im_end|>")]

    def _answer(self, template: str) -> None:
        """Say what the model answers next."""
        name = _NAMED.findall(self.messages[-1]["content"])[-1]
        self._play.answers[name] = self._written(
            thinks=template in ("loop_last", "older"),
            opened=template == "loop_stripped",
            xml=template == "loop_stripped",
        )

    def leave(self, template: str) -> None:
        """Ask, and go before the answer is whole."""
        self._answer(template)
        with connected(self._play.url) as connection:
            connection.sendall(self._play.sent(self.messages, stream=True))
            assert connection.recv(1)

    def ask(self, template: str, **fields: Any) -> Answered:
        """Do one turn, and send the answer back in the next."""
        self._answer(template)
        answered = self._play.ask(self.messages, stream=self.turn % 2 == 1, **fields)
        message = {k: v for k, v in answered.message.items() if not self._drops or k != "reasoning"}
        self.turn += 1
        self.messages.append(message)
        for number, call in enumerate(message.get("tool_calls", ())):
            content = self._named(f"result {number}")
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        if "tool_calls" not in message:
            self.messages.append({"role": "user", "content": self._named("next")})
        return answered
