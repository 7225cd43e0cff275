"""A client that drops reasoning, or whose template reads it under another name, gets it back with
`--keep-reasoning`: in a tool loop nothing but the new text is computed."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kit.tinylm import LmServer
from kit.tinylm.played import PlayedModel
from omlx_cache.integrations.mlx_lm.reasoning import ADVICE

from .conftest import Start, cli, stats

Message = dict[str, Any]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
        },
    }
]
XML = "<tool_call>\n<function=look>\n<parameter=where>\n{}\n</parameter>\n</function>\n</tool_call>"
JSON = '<tool_call>\n{{"name": "look", "arguments": {{"where": "{}"}}}}\n</tool_call>'


@dataclass
class Played:
    """How a template's model writes an answer that thinks, and a tool call."""

    template: str
    thinks: str
    call: str


LOOP_STRIPPED = Played("loop_stripped", "{}\n</think>\n\n", XML)
LOOP_LAST = Played("loop_last", "<think>\n{}\n</think>\n\n", JSON)
OLDER = Played("older", "<think>{}</think>", JSON)


@dataclass
class PlayedChat:
    """A client. `returns` is how it sends an answer back."""

    server: LmServer
    model: PlayedModel
    played: Played
    returns: Callable[[Message], Message]
    messages: list[Message] = field(default_factory=list)
    known: int = 0
    """Tokens of the last prompt and its answer that the model has read."""

    def ask(self, thought: str, *says: str, stream: bool = False, **options: Any) -> int:
        """Send the messages, be answered so, and return how many tokens were computed that the
        model had read before."""
        self.model.write(self.played.thinks.format(thought) + "\n".join(says))
        options = {"tools": TOOLS, "max_tokens": 400, "temperature": 0, **options}
        options |= {"model": str(self.model.path), "messages": self.messages}
        with self.server.client() as client:
            if stream:
                options |= {"stream": True, "stream_options": {"include_usage": True}}
                pieces = list(client.chat.completions.create(**options))
                usage, answer = pieces[-1].usage, _joined(pieces[:-1])
            else:
                reply = client.chat.completions.create(**options)
                usage, answer = reply.usage, reply.choices[0].message.model_dump(exclude_none=True)
        assert answer["reasoning"].strip() == thought
        assert len(answer.get("tool_calls", ())) == sum("<tool_call>" in one for one in says)
        self.messages.append(self.returns(answer))
        again = self.known - usage.prompt_tokens_details.cached_tokens
        # The last token that was sampled, the answer's end, need not be read.
        self.known = usage.prompt_tokens + usage.completion_tokens - 1
        return max(0, again)

    def call(self, thought: str, *places: str, stream: bool = False) -> int:
        """`ask`, be answered with tool calls, and call the tools."""
        calls = [self.played.call.format(place) for place in places]
        again = self.ask(thought, *calls, stream=stream)
        for call in self.messages[-1]["tool_calls"]:
            result = {"role": "tool", "tool_call_id": call["id"], "content": f"{thought}: found"}
            self.messages.append(result)
        return again

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})


def _joined(pieces: list[Any]) -> Message:
    answer: Message = {"role": "assistant"}
    for piece in pieces:
        sent = piece.choices[0].delta.model_dump(exclude_none=True)
        for name in ("content", "reasoning"):
            if name in sent:
                answer[name] = answer.get(name, "") + sent[name]
        if "tool_calls" in sent:
            answer["tool_calls"] = answer.get("tool_calls", []) + sent["tool_calls"]
    return answer


def faithful(answer: Message) -> Message:
    return answer


def drops(answer: Message) -> Message:
    returned = {name: value for name, value in answer.items() if name != "reasoning"}
    return {**returned, "content": (answer.get("content") or "").strip()}


@pytest.fixture
def begin(start: Start, tmp_path: Path) -> Callable[..., PlayedChat]:
    """Starts a server of a played model, and a chat with it."""

    def begun(
        family: str, played: Played, returns: Callable[[Message], Message], *flags: str
    ) -> PlayedChat:
        model = PlayedModel(tmp_path / "played", family, played.template)
        server = start(model.path, "--trust-remote-code", *flags, OMLX_CACHE_PREPARE="off")
        chat = PlayedChat(server, model, played, returns)
        chat.say("Where did I leave my keys, and when did I have them last? I need them. " * 4)
        return chat

    return begun


@pytest.mark.parametrize(
    ("family", "played", "returns"),
    [
        ("qwen3", LOOP_STRIPPED, faithful),
        ("qwen3", LOOP_LAST, drops),
        ("qwen3", OLDER, drops),
        ("qwen3_next", LOOP_STRIPPED, drops),
        ("gemma3_text", LOOP_STRIPPED, drops),
    ],
)
def test_in_a_tool_loop_nothing_is_computed_twice(
    begin: Callable[..., PlayedChat],
    family: str,
    played: Played,
    returns: Callable[[Message], Message],
) -> None:
    chat = begin(family, played, returns, "--keep-reasoning")
    chat.call("I look in the kitchen", "the kitchen")
    assert chat.call("Not there", "the hall", "the garden") == 0
    assert chat.call("Nor there", "the car", stream=True) == 0
    assert chat.call("Once more", "the roof") == 0
    assert chat.ask("They are here", "On the roof.") == 0


def test_a_templates_switch_keeps_the_loop_when_the_user_speaks_again(
    begin: Callable[..., PlayedChat],
) -> None:
    chat = begin("qwen3", LOOP_STRIPPED, drops, "--keep-reasoning")
    chat.call("I look in the kitchen", "the kitchen")
    chat.call("Not there", "the hall")
    assert chat.ask("They are here", "In the hall.") == 0
    for number in range(3):
        chat.say(f"And my hat, number {number}?")
        assert chat.ask(f"A hat {number}", "I do not know.") == 0


def test_a_switch_that_somebody_has_set_stays_as_it_is(begin: Callable[..., PlayedChat]) -> None:
    flag = ("--chat-template-args", '{"preserve_thinking": false}')
    chat = begin("qwen3", LOOP_STRIPPED, faithful, "--keep-reasoning", *flag)
    chat.call("I look in the kitchen", "the kitchen")
    assert chat.ask("They are here", "In the kitchen.") == 0
    chat.say("And my hat?")
    assert chat.ask("A hat", "I do not know.") > 0


def test_without_the_flag_the_loop_is_computed_again_and_why_names_the_flag(
    begin: Callable[..., PlayedChat], home: Path
) -> None:
    chat = begin("qwen3", LOOP_STRIPPED, drops)
    chat.call("I look in the kitchen", "the kitchen")
    assert chat.call("Not there", "the hall") > 0
    (last,) = json.loads(cli(home, "why", "--format", "json"))["requests"]
    assert (last["explanation"]["reason"], last["explanation"]["detail"]) == ("rewritten", ADVICE)
    assert stats(home)["requests"]["misses"]["rewritten"] == 1
    doctor = json.loads(cli(home, "doctor", "--format", "json", "--seconds", "0.1"))
    (found,) = [one for one in doctor["findings"] if one["check"] == "histories"]
    assert found["severity"] == "note"
    assert "--keep-reasoning" in found["remedy"]
