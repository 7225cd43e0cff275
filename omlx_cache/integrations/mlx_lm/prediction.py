"""Predicts how the next prompt of a conversation begins, before a client sends it.

A chat template decides by what follows an answer how it writes the answer and the turns before it.
So the message that must follow is put there, with two contents: what both prompts share will not
depend on the content.
"""

import copy
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omlx_cache_storage.keys import as_tokens, shared_length

_log = logging.getLogger(__name__)

REASONING = ("reasoning", "reasoning_content", "thinking")
"""Names under which clients send reasoning back, and templates read it."""
_PLACEHOLDERS = ("0", "x")
"""Contents that share no token."""

Message = Mapping[str, Any]


def predicted(
    render: Callable[[list[dict[str, Any]]], list[int]],
    messages: Sequence[Message],
    answer: Message,
    is_special: Callable[[int], bool],
) -> list[int]:
    """Return the tokens that the next prompt begins with, up to their last special token: [] where
    nothing can be predicted. Changes nothing that it is given, and raises nothing.

    `messages` were answered with `answer`, as the server sent it. `render` tokenises messages,
    which it may change. Behind a special token a tokenizer begins anew, so that no content changes
    the tokens before it.
    """
    try:
        known = [*map(dict, messages), as_returned(answer, messages)]
        one, other = (
            render(_as_sent([*known, *_following(answer, messages, content)]))
            for content in _PLACEHOLDERS
        )
    except Exception:
        _log.debug("the next prompt cannot be predicted", exc_info=True)
        return []
    end = shared_length(as_tokens(one), as_tokens(other))
    while end and not is_special(one[end - 1]):
        end -= 1
    return one[:end]


def _as_sent(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copy messages as clients send them: mlx-lm parses a call's arguments in place, and before
    0.32 takes no parsed ones."""
    copies = copy.deepcopy([*map(dict, messages)])
    for call in (call for message in copies for call in message.get("tool_calls") or ()):
        arguments = (function := call.get("function") or {}).get("arguments")
        if isinstance(arguments, dict):
            function["arguments"] = json.dumps(arguments)
    return copies


def as_returned(answer: Message, messages: Sequence[Message]) -> dict[str, Any]:
    """Return an answer as this client will send it back: with the fields and the white space of the
    latest answer in the same request, and with reasoning where an earlier one came with it."""
    answers = [message for message in messages if message.get("role") == "assistant"]
    called = bool(answer.get("tool_calls"))
    alike = [message for message in answers if bool(message.get("tool_calls")) is called]
    like = (alike or answers or [{}])[-1]
    own = (*REASONING, "content", "tool_calls")
    returned = {name: value for name, value in like.items() if name not in own}
    # Before a call a model writes other white space than at the end of a turn.
    content = _spaced(answer.get("content") or "", [m.get("content") for m in alike or answers])
    returned |= {"role": "assistant", "content": content}
    if called:
        # Of a stream's pieces no client returns the number.
        returned["tool_calls"] = [
            {name: value for name, value in call.items() if name != "index"}
            for call in answer["tool_calls"]
        ]
    reasoning = next((answer[name] for name in REASONING if answer.get(name)), None)
    for name in REASONING:
        sent = [message[name] for message in answers if message.get(name)]
        if sent and reasoning:
            returned[name] = _spaced(reasoning, sent)
        elif name in like:
            returned[name] = None if like[name] else like[name]
    return returned


def _spaced(text: str, sent: list[Any]) -> str:
    """Return a text without the white space at its ends that the client's latest one lacks; blank
    ones only tell what becomes of a blank one."""
    texts = [one for one in sent if isinstance(one, str)]
    like = next(filter(None, reversed(texts)), "" if texts and not text.strip() else " ")
    if not like[0:1].isspace():
        text = text.lstrip()
    return text if like[-1:].isspace() else text.rstrip()


def _following(answer: Message, messages: Sequence[Message], content: str) -> list[dict[str, Any]]:
    """Return the messages that must follow, with the fields of earlier ones: a result of each tool
    call, or what the user says."""
    calls = answer.get("tool_calls")
    role = "tool" if calls else "user"
    earlier = [message for message in messages if message.get("role") == role]
    like = {**earlier[-1]} if earlier else {"role": role}
    if not calls:
        return [{**like, "content": content}]
    following = []
    for call in calls:
        result = {**like, "tool_call_id": call.get("id"), "content": content}
        if "name" in result:
            result["name"] = call["function"]["name"]
        following.append(result)
    return following
