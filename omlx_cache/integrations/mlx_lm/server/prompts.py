"""Prompts to warm: read from a file, turned into the tokens that the server would see."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mlx_lm.server import process_message_content


class PromptFileError(ValueError):
    """A file, or a line of it, that is no prompt; the text says which."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat, or a text when `messages` is empty."""

    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Any] | None = None
    text: str = ""


class Warmable(NamedTuple):
    """Tokens worth keeping, and the token counts inside at which a chat's parts end."""

    tokens: list[int]
    segments: list[int]


def read_prompts(path: Path) -> list[Prompt]:
    """Return the prompts of a file: JSON Lines when its name ends so, else one raw text.

    A line is a chat (`{"messages": [...], "tools": [...]}`, or the list alone) or a text
    (`{"prompt": "..."}`, `{"text": "..."}`, or the string alone). Raises PromptFileError and
    OSError.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{path} is not UTF-8 text: {error}") from None
    if path.suffix not in (".jsonl", ".ndjson", ".json"):
        return [Prompt(text=content)] if content else []
    lines = enumerate(content.splitlines(), 1)
    return [_prompt(line, f"{path}, line {number}") for number, line in lines if line.strip()]


def _prompt(line: str, where: str) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        # Not only what is no JSON: a number of thousands of digits, or lists without end.
        raise PromptFileError(f"{where}: {error}") from None
    if isinstance(value, str):
        value = {"text": value}
    elif isinstance(value, list):
        value = {"messages": value}
    if isinstance(value, dict):
        text = value.get("prompt", value.get("text"))
        if isinstance(text, str) and text:
            return Prompt(text=text)
        messages = value.get("messages")
        if isinstance(messages, list) and messages and all(map(_is_message, messages)):
            return Prompt(messages, value.get("tools") or None)
    raise PromptFileError(f"{where}: neither a chat (messages) nor a text (prompt, text)")


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def warmable(prompt: Prompt, tokenizer: Any, template: Mapping[str, Any]) -> Warmable:
    """Return what a request with this prompt could restore: all of it but its last token.

    A chat of system messages only gives what every chat that begins with them shares.
    """
    if not prompt.messages:
        return Warmable(list(tokenizer.encode(prompt.text))[:-1], [])
    messages = [dict(message) for message in deepcopy(list(prompt.messages))]
    process_message_content(messages)
    options = {**template, "tools": prompt.tools}
    count = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    system = _shared(messages[:count], tokenizer, options) if count else []
    if count == len(messages):
        return Warmable(system, [])
    tokens = _render(messages, tokenizer, options)[:-1]
    shared = len(system) if tokens[: len(system)] == system else 0
    return Warmable(tokens, [shared] if shared else [])


def _shared(system: list[dict[str, Any]], tokenizer: Any, options: Mapping[str, Any]) -> list[int]:
    """Return the tokens with which every chat of these system messages begins."""
    one, two = (
        _render([*system, {"role": "user", "content": content}], tokenizer, options)
        for content in ("", "x")
    )
    pairs = enumerate(zip(one, two, strict=False))
    return one[: next((i for i, (a, b) in pairs if a != b), min(len(one), len(two)))]


def _render(
    messages: list[dict[str, Any]], tokenizer: Any, options: Mapping[str, Any]
) -> list[int]:
    rendered = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, **options
    )
    return [int(token) for token in rendered]
