"""What is predicted of the next prompt is what it begins with, whatever the template does."""

import copy
import json
import random
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from mlx_lm.server import process_message_content

from kit.templates import MARKERS, SPECIALS, TEMPLATES, bpe_tokenizer
from omlx_cache.integrations.mlx_lm.preparing import as_returned, predicted
from omlx_cache.integrations.mlx_lm.reasoning import KeptReasoning

Message = dict[str, Any]
TURNS = 10
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
WORDS = ["the", "quick", "tests", "of", "old", "cold", "pages", "in", "memory,", "and", "17"]


@cache
def tokenizer_of(template: str) -> Any:
    corpus = [" ".join(WORDS), *TEMPLATES.values(), "user\n", "\n\n", "assistant\n<think>\n"] * 4
    return bpe_tokenizer(TEMPLATES[template], corpus)


def renders(template: str, **options: Any) -> Callable[[list[Message]], list[int]]:
    """How mlx-lm's server makes a prompt of messages, which it changes."""

    def render(messages: list[Message]) -> list[int]:
        process_message_content(messages)
        tokens = tokenizer_of(template).apply_chat_template(
            messages,
            tools=TOOLS,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **options,
        )
        return list(tokens)

    return render


def special(template: str) -> Callable[[int], bool]:
    names = tokenizer_of(template).convert_tokens_to_ids([*SPECIALS, *MARKERS])
    return set(names).__contains__


class Chat:
    """A client, and what a model answers it: `returns` is how the client sends an answer back."""

    def __init__(self, seed: int, returns: Callable[[Message], Message]) -> None:
        self._random = random.Random(seed)
        self._returns = returns
        self.messages: list[Message] = [
            {"role": "system", "content": self._text()},
            {"role": "user", "content": self._text()},
        ]

    def _text(self) -> str:
        text = " ".join(self._random.choices(WORDS, k=self._random.randint(1, 12)))
        # Contents that a tokenizer would join with what stands before or behind them.
        return self._random.choice(("", "\n", "\n\n", " ")) + text + self._random.choice(("", "\n"))

    def answer(self, turn: int) -> Message:
        """As mlx-lm's server sends it."""
        answer: Message = {"role": "assistant", "content": f"\n\n{self._text()}\n"}
        answer["reasoning"] = f"\n{self._text()}\n"
        calls = (1, 1, 2, 0, 3, 0, 1, 0, 0, 1)[turn % TURNS]
        if calls:
            answer["content"] = self._random.choice((None, answer["content"]))
            answer["tool_calls"] = [
                {
                    "type": "function",
                    "id": f"call-{turn}-{number}",
                    "index": number,
                    "function": {
                        "name": "look",
                        "arguments": json.dumps({"where": self._text(), "at": number}),
                    },
                }
                for number in range(calls)
            ]
        return answer

    def follow(self, answer: Message) -> None:
        """Send the answer back with what comes next."""
        self.messages.append(self._returns(answer))
        for call in answer.get("tool_calls", ()):
            result = {"role": "tool", "tool_call_id": call["id"], "content": self._text()}
            self.messages.append(result)
        if "tool_calls" not in answer:
            self.messages.append({"role": "user", "content": self._text()})


def faithful(answer: Message) -> Message:
    return answer


def drops_reasoning(answer: Message) -> Message:
    return {name: value for name, value in answer.items() if name != "reasoning"}


def strips(answer: Message) -> Message:
    returned = drops_reasoning(answer)
    return {**returned, "content": (answer["content"] or "").strip()}


def renames_reasoning(answer: Message) -> Message:
    returned = drops_reasoning(answer)
    return {**returned, "refusal": None, "reasoning_content": answer["reasoning"].strip()}


CLIENTS = [faithful, drops_reasoning, strips, renames_reasoning]


@pytest.mark.parametrize("returns", CLIENTS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_it_is_the_next_prompts_beginning_up_to_what_the_client_says(
    template: str, returns: Callable[[Message], Message]
) -> None:
    render, is_special = renders(template), special(template)
    for seed in range(2):
        chat = Chat(seed, returns)
        for turn in range(TURNS):
            answer = chat.answer(turn)
            asked = copy.deepcopy(chat.messages)
            process_message_content(asked)
            before = copy.deepcopy((asked, answer))
            tokens = predicted(render, asked, answer, is_special)
            assert (asked, answer) == before
            chat.follow(answer)
            real = render(copy.deepcopy(chat.messages))
            if turn >= 4:
                # By then the client has sent both kinds of answers back.
                assert real[: len(tokens)] == tokens
                opening = tokenizer_of(template).decode(real[len(tokens) : len(tokens) + 12])
                said = chat.messages[-len(answer.get("tool_calls", "1"))]["content"].strip()[:3]
                assert said in opening
            assert is_special(tokens[-1])


@pytest.mark.parametrize("template", ["loop_last", "loop_stripped", "older"])
def test_reasoning_that_is_given_back_is_expected_from_the_first_answer_on(template: str) -> None:
    kept = KeptReasoning(True, {})
    chat = Chat(4, drops_reasoning)

    def render(messages: list[Message]) -> list[int]:
        asked = SimpleNamespace(messages=messages, tools=None)
        args = SimpleNamespace(chat_template_kwargs=None)

        def plain() -> list[int]:
            return renders(template, **args.chat_template_kwargs or {})(asked.messages)

        return kept.rendered(asked, args, tokenizer_of(template), plain)

    for turn in range(TURNS):
        answer = chat.answer(turn)
        asked = copy.deepcopy(chat.messages)
        render(asked)
        kept.answered(asked, answer)
        tokens = predicted(render, asked, answer, special(template))
        chat.follow(answer)
        real = render(copy.deepcopy(chat.messages))
        assert real[: len(tokens)] == tokens
        said = answer["reasoning"].strip()
        assert said in tokenizer_of(template).decode(tokens) or "tool_calls" not in answer


@pytest.mark.parametrize("template", TEMPLATES)
def test_after_an_edit_of_the_history_the_next_prediction_holds_again(template: str) -> None:
    render, is_special = renders(template), special(template)
    chat = Chat(3, drops_reasoning)
    for turn in range(TURNS):
        answer = chat.answer(turn)
        tokens = predicted(render, chat.messages, answer, is_special)
        chat.follow(answer)
        if turn in (3, 7):
            chat.messages[1] = {"role": "user", "content": f"edited in turn {turn}"}
            assert render(copy.deepcopy(chat.messages))[: len(tokens)] != tokens
        else:
            assert render(copy.deepcopy(chat.messages))[: len(tokens)] == tokens


@pytest.mark.parametrize("template", ["loop_last", "loop_stripped"])
def test_without_an_earlier_answer_no_reasoning_is_expected(template: str) -> None:
    chat = Chat(1, drops_reasoning)
    answer = {**chat.answer(3), "content": "Yes."}
    tokens = predicted(renders(template), chat.messages, answer, special(template))
    chat.follow(answer)
    assert renders(template)(chat.messages)[: len(tokens)] == tokens


def test_nothing_is_predicted_where_the_template_fails() -> None:
    def render(messages: list[Message]) -> list[int]:
        raise ValueError("roles must alternate")

    assert predicted(render, [], {"role": "assistant", "content": "A"}, lambda token: True) == []


def test_nothing_is_predicted_of_a_call_that_is_no_json() -> None:
    chat = Chat(1, faithful)
    answer = chat.answer(0)
    answer["tool_calls"][0]["function"]["arguments"] = '{"where": "cut o'
    assert predicted(renders("plain"), chat.messages, answer, special("plain")) == []


def test_nothing_is_predicted_without_special_tokens() -> None:
    chat = Chat(1, faithful)
    answer = chat.answer(3)
    assert predicted(renders("plain"), chat.messages, answer, lambda token: False) == []


def test_a_tool_result_has_the_fields_of_an_earlier_one() -> None:
    seen: list[list[Message]] = []

    def render(messages: list[Message]) -> list[int]:
        seen.append(messages)
        return []

    earlier = {"role": "tool", "tool_call_id": "a", "name": "look", "content": "nothing"}
    answer = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "b", "type": "function", "function": {"name": "read", "arguments": "{}"}},
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ],
    }
    predicted(render, [earlier], answer, lambda token: True)
    results = seen[0][-2:]
    assert [(r["tool_call_id"], r["name"]) for r in results] == [("b", "read"), ("c", "look")]
    assert seen[0][-1]["content"] != seen[1][-1]["content"]


@pytest.mark.parametrize(
    ("earlier", "content"),
    [
        ([], "\n\nDone.\n"),
        ([{"role": "assistant", "content": "\nOf course."}], "\n\nDone."),
        ([{"role": "assistant", "content": "Of course."}], "Done."),
        ([{"role": "assistant", "content": ""}], "\n\nDone.\n"),
    ],
)
def test_white_space_comes_back_as_it_did(earlier: list[Message], content: str) -> None:
    answer = {"role": "assistant", "content": "\n\nDone.\n"}
    assert as_returned(answer, earlier)["content"] == content


def test_white_space_alone_comes_back_empty_from_who_sent_none() -> None:
    blank = {"role": "assistant", "content": "\n\n"}
    assert as_returned(blank, [{"role": "assistant", "content": ""}])["content"] == ""
    assert as_returned(blank, [])["content"] == "\n\n"


def test_arguments_that_mlx_lm_has_parsed_are_sent_as_text_again() -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": {"where": "in memory"}}}
    messages = [
        {"role": "user", "content": "what"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", **call}]},
        {"role": "tool", "tool_call_id": "1", "content": "17"},
    ]
    render, before = renders("plain"), copy.deepcopy(messages)

    def old(messages: list[Message]) -> list[int]:
        """As versions before 0.32 do."""
        for function in (one["function"] for m in messages for one in m.get("tool_calls", ())):
            json.loads(function["arguments"])
        return render(messages)

    answer = {"role": "assistant", "content": "the old tests"}
    found = predicted(old, messages, answer, special("plain"))
    assert found == predicted(render, messages, answer, special("plain")) != []
    assert messages == before
