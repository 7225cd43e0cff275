"""What a client dropped of an answer is found again, for its own conversation only, and given to a
template under the name that it reads."""

import copy
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from kit.templates import LOOP_LAST, LOOP_STRIPPED, OLDER, PLAIN
from omlx_cache.integrations.mlx_lm import reasoning
from omlx_cache.integrations.mlx_lm.reasoning import KeptReasoning

Message = dict[str, Any]
ASKED = [{"role": "system", "content": "Help."}, {"role": "user", "content": "Is it so?"}]
ANSWER = {"role": "assistant", "content": "Yes.", "reasoning": "It is."}


def prompt(
    kept: KeptReasoning, messages: list[Message], template: Any, tools: Any = None, **options: Any
) -> tuple[list[Message], Any]:
    """The messages and the arguments that a template is given, and whether some are lacking."""
    request = SimpleNamespace(messages=copy.deepcopy(messages), tools=tools)
    args = SimpleNamespace(chat_template_kwargs=options or None)
    tokenizer = SimpleNamespace(chat_template=template)
    render = kept.rendered(request, args, tokenizer, lambda: copy.deepcopy(request.messages))
    return render, SimpleNamespace(options=args.chat_template_kwargs, lacks=request.lacks_reasoning)


def returned(answer: Message, **changed: Any) -> Message:
    return {**{name: v for name, v in answer.items() if name != "reasoning"}, **changed}


def called(*ids: str) -> Message:
    calls = [{"id": i, "function": {"name": "look", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls, "reasoning": f"I call {ids}."}


def keeping(*answers: tuple[list[Message], Message], gives: bool = True) -> KeptReasoning:
    kept = KeptReasoning(gives, {})
    for messages, answer in answers:
        kept.answered(messages, answer)
    return kept


@pytest.mark.parametrize("content", ["Yes.", "\n\nYes.\n", [{"type": "text", "text": "Yes."}]])
def test_it_is_found_by_the_answers_text(content: Any) -> None:
    chat = [*ASKED, returned(ANSWER, content=content), {"role": "user", "content": "Why?"}]
    messages, _ = prompt(keeping((ASKED, ANSWER)), chat, LOOP_LAST)
    assert messages[2]["reasoning_content"] == "It is."
    assert messages[2]["content"] == content


def test_the_same_words_in_another_conversation_are_another_answer() -> None:
    kept = keeping((ASKED, ANSWER))
    others = [ASKED[0], {"role": "user", "content": "Really?"}, returned(ANSWER)]
    assert prompt(kept, others, LOOP_LAST)[0] == others


def test_other_tools_arguments_or_images_are_another_answer() -> None:
    kept, tools = keeping((ASKED, ANSWER)), [{"type": "function"}]
    chat = [*ASKED, returned(ANSWER)]
    assert prompt(kept, chat, LOOP_LAST, tools)[0] == chat
    call = called(str(uuid.uuid4()))
    other = copy.deepcopy(returned(call))
    other["tool_calls"][0]["function"]["arguments"] = '{"iban": 2}'
    assert prompt(keeping((ASKED, call)), [*ASKED, other], LOOP_LAST)[0] == [*ASKED, other]
    shown = [
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        for url in ("data:a", "data:b")
    ]
    kept, chat = keeping((shown[0], ANSWER)), [*shown[1], returned(ANSWER)]
    assert prompt(kept, chat, LOOP_LAST)[0] == chat
    assert prompt(kept, [*shown[0], returned(ANSWER)], LOOP_LAST)[0] != chat


def test_what_cannot_be_read_of_a_request_ends_no_answer() -> None:
    kept = KeptReasoning(True, {})
    kept.answered([{"role": "assistant", "tool_calls": ["x"]}], ANSWER)
    assert kept.nbytes == 0


def test_a_call_is_found_by_its_id_whatever_became_of_what_was_said_before() -> None:
    call = called(str(uuid.uuid4()), str(uuid.uuid4()))
    edited = [{"role": "user", "content": "Edited"}, returned(call, content="I look.")]
    messages, _ = prompt(keeping((ASKED, call)), edited, LOOP_LAST)
    assert messages[1]["reasoning_content"] == call["reasoning"]


def test_an_id_that_a_model_gives_is_its_conversations_own() -> None:
    call = called("functions.look:0")
    kept = keeping((ASKED, call))
    messages, _ = prompt(kept, [*ASKED, returned(call)], LOOP_LAST)
    assert messages[2]["reasoning_content"] == call["reasoning"]
    others = [{"role": "user", "content": "Another"}, returned(call)]
    assert prompt(kept, others, LOOP_LAST)[0] == others


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (LOOP_LAST, "reasoning_content"),
        ("{{ m.reasoning }}", "reasoning"),
        ("{% if 'thinking' in m %}{{ m['thinking'] }}{% endif %}", "thinking"),
        ("{{ m.get('reasoning_content') or m.get('reasoning') }}", "reasoning_content"),
        ({"default": "{{ m.reasoning }}", "tool_use": ""}, "reasoning"),
        (None, "reasoning_content"),
    ],
)
def test_it_is_given_under_the_name_that_a_template_reads(template: Any, name: str) -> None:
    messages, _ = prompt(keeping((ASKED, ANSWER)), [*ASKED, returned(ANSWER)], template)
    assert messages[2] == {**returned(ANSWER), name: "It is."}


def test_what_a_client_sends_under_another_name_is_given_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reasoning, "_ALIASES", False)
    reasoning._read_by.cache_clear()
    edited = {**ANSWER, "reasoning": "It may be."}
    messages, _ = prompt(keeping((ASKED, ANSWER)), [*ASKED, edited], LOOP_LAST)
    assert messages[2]["reasoning_content"] == "It may be."
    reasoning._read_by.cache_clear()


def test_what_a_client_sends_stays_as_it_is() -> None:
    own = returned(ANSWER, reasoning_content="I think so.")
    assert prompt(keeping((ASKED, ANSWER)), [*ASKED, own], LOOP_LAST)[0][2] == own


def test_a_template_that_reads_no_reasoning_is_given_none() -> None:
    chat = [*ASKED, returned(ANSWER)]
    assert prompt(keeping((ASKED, ANSWER)), chat, PLAIN)[0] == chat


@pytest.mark.parametrize(
    ("template", "given", "options"),
    [
        (LOOP_STRIPPED, {}, {"preserve_thinking": True}),
        (OLDER, {}, {"clear_thinking": False}),
        (OLDER, {"clear_thinking": True}, {"clear_thinking": True}),
        (LOOP_LAST, {"enable_thinking": False}, {"enable_thinking": False}),
    ],
)
def test_a_switch_is_used_unless_it_is_set(
    template: str, given: dict[str, Any], options: dict[str, Any]
) -> None:
    assert prompt(keeping(), ASKED, template, **given)[1].options == options
    kept = KeptReasoning(True, given)
    assert {**given, **(prompt(kept, ASKED, template)[1].options or {})} == options


def test_what_a_template_refuses_is_taken_back() -> None:
    chat = [*ASKED, returned(ANSWER)]
    request = SimpleNamespace(messages=chat, tools=None)
    args = SimpleNamespace(chat_template_kwargs=None)

    def render() -> str:
        if "reasoning_content" in request.messages[2]:
            raise ValueError("no reasoning beside content")
        return "rendered"

    kept = keeping((ASKED, ANSWER))
    tokenizer = SimpleNamespace(chat_template=LOOP_STRIPPED)
    assert kept.rendered(request, args, tokenizer, render) == "rendered"
    assert args.chat_template_kwargs is None
    assert chat == [*ASKED, returned(ANSWER)]


@pytest.mark.parametrize(
    "messages", [[None], [{"role": "assistant", "tool_calls": [3]}], [{"content": [None]}]]
)
def test_an_odd_request_is_for_mlx_lm_to_refuse(messages: list[Any]) -> None:
    assert prompt(keeping(), messages, LOOP_LAST)[0] == messages


def test_memory_is_bounded_and_what_was_used_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasoning, "BYTES", 3 * (reasoning.ENTRY_BYTES + 100))
    kept = keeping()
    calls = [called(str(uuid.uuid4())) for _ in range(4)]
    for call in calls[:3]:
        kept.answered(ASKED, {**call, "reasoning": "x" * 100})
    assert kept.nbytes == reasoning.BYTES

    def is_known(call: Message) -> bool:
        return "reasoning_content" in prompt(kept, [returned(call)], LOOP_LAST)[0][0]

    assert is_known(calls[0])
    kept.answered(ASKED, {**calls[3], "reasoning": "x" * 100})
    assert [is_known(call) for call in calls] == [True, False, True, True]
    assert kept.nbytes == reasoning.BYTES
    kept.answered(ASKED, {**called(str(uuid.uuid4())), "reasoning": "x" * 2000})
    assert kept.nbytes == 0


CALL = called(str(uuid.uuid4()))
RESULT = {"role": "tool", "content": "found"}


@pytest.mark.parametrize(
    ("template", "answer", "following", "lacks"),
    [
        (LOOP_LAST, CALL, RESULT, True),
        (LOOP_LAST, ANSWER, {"role": "user", "content": "Why?"}, False),
        (LOOP_STRIPPED, ANSWER, {"role": "user", "content": "Why?"}, True),
        (PLAIN, CALL, RESULT, False),
    ],
)
def test_without_it_a_request_says_where_it_would_help(
    template: str, answer: Message, following: Message, lacks: bool
) -> None:
    kept = keeping((ASKED, answer), gives=False)
    chat = [*ASKED, returned(answer), following]
    messages, seen = prompt(kept, chat, template)
    assert (messages, seen.options, seen.lacks) == (chat, None, lacks)
    assert kept.nbytes == reasoning.ENTRY_BYTES
    unknown = [*chat[:2], returned(answer, content="Other", tool_calls=[]), following]
    assert not prompt(kept, unknown, template)[1].lacks


def test_without_it_a_switch_would_help_a_client_that_sends_everything() -> None:
    chat = [*ASKED, returned(ANSWER, reasoning_content="It is."), {"role": "user", "content": "?"}]
    assert prompt(keeping(gives=False), chat, LOOP_STRIPPED)[1].lacks
    assert not prompt(keeping(gives=False), chat, LOOP_STRIPPED, preserve_thinking=True)[1].lacks
