"""The prompts of a file, for `omlx-cache warm`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PromptFileError(ValueError):
    """A file, or a line of it, that is no prompt; the text says which."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat, or a text when `messages` is empty."""

    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Any] | None = None
    text: str = ""


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
