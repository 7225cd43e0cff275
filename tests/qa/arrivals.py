"""A campaign of arrivals: none waits for more than one chunk of what is prepared meanwhile.

`PYTHONPATH=tests python -m qa.arrivals --count 10000 --seed 1` prints a table and ends with 1 when
one had to. `omlx-cache serve` runs in a process of its own, with a small model whose template
writes tool loops anew when the user speaks. Conversations go on within a second, so that there is
always something to prepare, and strangers come at any moment. The server's process counts from a
request's arrival, whole and read, until the generation thread takes it.
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
from integrations.server.playing import TOOLS, WORDS, make_chat_model
from mlx_lm import server
from transformers import PreTrainedTokenizerFast

from kit.tinylm import LmServer
from kit.tinylm.process import cached_environment, start_server
from kit.wire import exchange, request
from omlx_cache import scope
from omlx_cache.integrations.mlx_lm import preparing
from omlx_cache.integrations.mlx_lm.responses import Responses
from omlx_cache.preparation import Preparation
from omlx_cache_daemon import cli

TEMPLATE, FAMILY = "loop_stripped", "qwen3"
CONVERSATIONS, ROUNDS, RESULT_WORDS, STRANGERS = 2, 3, 80, 16
"""Conversations at once; rounds of a tool loop, and words of a result; strangers between turns."""
TURNS, GAP_SECONDS, CHUNK_SECONDS = 3, 0.02, 0.02
Message = dict[str, Any]


class Counts:
    """Chunks that were computed, and how many each request waited for, by whether something was
    being prepared when it came. They are written to `file`; after `most` of those the server
    ends."""

    def __init__(self, most: int, file: Path) -> None:
        self._most, self._file = most, file
        self._computed = 0
        self.waits: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
        compute, generate, take = (
            Preparation._compute,
            Responses.generate,
            Responses._next_request,
        )

        def computed(preparation: Any, *arguments: Any) -> None:
            compute(preparation, *arguments)
            self._computed += 1

        def arrived(responses: Any, asked: Any, *arguments: Any, **options: Any) -> Any:
            is_met = responses._preparing._current is not None
            asked.came = self._computed, is_met
            return generate(responses, asked, *arguments, **options)

        def taken(responses: Any, *arguments: Any) -> Any:
            found = take(responses, *arguments)
            if found is not None:
                computed_before, is_met = found[1].came
                self.waits[is_met][self._computed - computed_before] += 1
                met = self.waits[True].total()
                if is_met and (met == self._most or met % 100 == 0):
                    self._file.write_text(json.dumps(self.waits))
                if met == self._most:
                    os.kill(os.getpid(), signal.SIGTERM)
            return found

        Preparation._compute, Responses.generate = computed, arrived  # type: ignore[method-assign]
        Responses._next_request = taken  # type: ignore[method-assign]


def serve(folder: Path, most: int) -> int:
    """Run the server until so many requests met a preparation; write the counts."""
    Counts(most, folder / "counts.json")
    # Many chunks, of few tokens; and strangers who ask for none of them stop nothing.
    scope.CHUNK_SECONDS, preparing.BACK_OFF_SECONDS = CHUNK_SECONDS, 0.0
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    answer = [*tokenizer.encode("the old tests", add_special_tokens=False), tokenizer.eos_token_id]

    def play(tokens: Any, logits: mx.array, said: list[int]) -> mx.array:
        said.append(answer[min(len(said), len(answer) - 1)])
        return mx.where(mx.arange(logits.shape[-1]) == said[-1], 0.0, -mx.inf)[None]

    def played(args: Any) -> list[Any]:
        said: list[int] = []
        return [lambda tokens, logits: play(tokens, logits, said)]

    server._make_logits_processors = played
    return cli.main(["serve", "--port", "0", "--model", str(folder / "model")])


class AgentConversation:
    """An agent's: each turn has a tool loop, and the user speaks behind it."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.messages: list[Message] = [{"role": "system", "content": self._text(40)}]
        self.turns = 0

    def _text(self, words: int) -> str:
        return " ".join(self._draw.choices(WORDS, k=words))

    def asked(self) -> list[Message]:
        """Go on by a turn that ends with tool results; return what is sent."""
        self.turns += 1
        self.messages.append({"role": "user", "content": self._text(12)})
        for number in range(ROUNDS):
            name = f"{self._draw.random()}"
            function = {"name": "look", "arguments": json.dumps({"at": number})}
            call = {"id": name, "type": "function", "function": function}
            thought = {"reasoning_content": self._text(20), "content": self._text(5)}
            self.messages.append({"role": "assistant", **thought, "tool_calls": [call]})
            result = self._text(RESULT_WORDS)
            self.messages.append({"role": "tool", "tool_call_id": name, "content": result})
        return self.messages


def campaign(count: int, seed: int, folder: Path) -> dict[bool, Counter[int]]:
    """Send requests until `count` of them met a preparation; return how many chunks were computed
    between their arrival and their turn, of those and of the others."""
    make_chat_model(folder / "model", FAMILY, TEMPLATE)
    command = ["-m", "qa.arrivals", "--work", str(folder), "--count", str(count)]
    variables = cached_environment(folder / "home", {"OMLX_CACHE_PREPARE": "auto"})
    server = start_server(folder / "log", command, variables, forked=True)
    try:
        _ask_until_it_ends(server, random.Random(seed))
    finally:
        server.stop()
    waits = json.loads((folder / "counts.json").read_text())
    return {
        met == "true": Counter({int(n): times for n, times in found.items()})
        for met, found in waits.items()
    }


def _ask_until_it_ends(to: LmServer, draw: random.Random) -> None:
    talks = [AgentConversation(draw) for _ in range(CONVERSATIONS)]
    while to.process.poll() is None:
        place = draw.randrange(CONVERSATIONS)
        if talks[place].turns == TURNS:
            talks[place] = AgentConversation(draw)
        talk = talks[place]
        if _ask(to.url, talk.asked(), tools=TOOLS):
            talk.messages.append({"role": "assistant", "content": "the old tests"})
        for number in range(draw.randrange(STRANGERS)):
            time.sleep(draw.uniform(0, GAP_SECONDS))
            _ask(to.url, [{"role": "user", "content": f"{draw.random()} {number}"}])


def _ask(url: str, messages: list[Message], **fields: Any) -> bool:
    """Ask; False when the server is gone, or about to."""
    body = {"messages": messages, "max_tokens": 20, **fields}
    try:
        sent = request(json.dumps(body).encode(), "/v1/chat/completions")
        return exchange(url, sent).status == 200
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.arrivals", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="requests that met a preparation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work is not None:
        return serve(args.work, args.count)
    with tempfile.TemporaryDirectory(prefix="omlx-cache-qa-") as folder:
        waits = campaign(args.count, args.seed, Path(folder))
    for met, found in waits.items():
        for chunks, times in sorted(found.items()):
            print(f"{'met' if met else 'not met':8} {chunks} chunks {times:8,}")
    return max(waits[True], default=0) > 1


if __name__ == "__main__":
    raise SystemExit(main())
