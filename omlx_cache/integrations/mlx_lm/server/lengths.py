"""How long a prompt is, found out without tokenising one that is far too long: that takes
hundreds of bytes for each of its characters."""

import copy
from typing import Any

from mlx_lm.server import convert_chat

from omlx_cache.integrations.mlx_lm.server.refusals import BadRequest
from omlx_cache.mlx_lm_versions import flatten_content

PIECE = 1 << 16
_SURE_CHARACTERS = 4
_AT_A_CUT = 16
"""More tokens than a cut through the text could add to those that the whole text has."""


def check_length(tokens: int, most: int) -> None:
    """Raise BadRequest for more tokens than the model was made for, or than were granted."""
    if tokens > most:
        raise too_long(str(tokens), most)


def too_long(tokens: str, most: int) -> BadRequest:
    return BadRequest(
        f"the prompt has {tokens} tokens, and {most} is the most for this model "
        "(serve --max-prompt-tokens)"
    )


def check_characters(text: str, most: int, tokenizer: Any) -> None:
    """Raise BadRequest when a text is surely longer than `most` tokens.

    Tokenises it piece by piece, until that is known, and only when it looks long.
    """
    if len(text) <= _SURE_CHARACTERS * most:
        return
    tokens = 0
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        tokens += max(0, len(tokenizer.encode(piece, add_special_tokens=False)) - _AT_A_CUT)
        if tokens > most:
            raise too_long(f"more than {most}", most)


def text_of(request: Any, args: Any, provider: Any) -> str:
    """Return the text that a request's prompt will be tokenised from; changes nothing."""
    if request.request_type != "chat":
        return str(request.prompt)
    tokenizer = provider.tokenizer
    messages = copy.deepcopy(request.messages)
    if not tokenizer.has_chat_template:
        return str(convert_chat(messages, request.role_mapping))
    flatten_content(messages, provider)
    options = {**provider.cli_args.chat_template_args, **(args.chat_template_kwargs or {})}
    options |= {"tools": request.tools, "tokenize": False, "add_generation_prompt": True}
    return str(tokenizer.apply_chat_template(messages, **options))


def looks_long(request: Any, most: int) -> bool:
    """True when the strings of a request have more characters than `most` tokens usually do."""
    if request.request_type != "chat":
        return len(request.prompt) > _SURE_CHARACTERS * most
    return _characters([request.messages, request.tools]) > _SURE_CHARACTERS * most


def _characters(root: Any) -> int:
    count, waiting = 0, [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
    return count
