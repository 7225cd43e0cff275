"""The tokens of a prompt that the server would see, as far as a request could restore them."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from mlx_lm.server import process_message_content

from omlx_cache.tools.prompt_file import Prompt


class Warmable(NamedTuple):
    """Tokens worth keeping, and the token counts inside at which a chat's parts end."""

    tokens: list[int]
    segments: list[int]


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
