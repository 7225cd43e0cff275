"""What the body of a request must look like, checked before a model sees any of it.

mlx-lm's handler checks most numbers. What it lets through is met by the generation thread, which
ends, and the server with it.
"""

from collections.abc import Mapping
from typing import Any

from omlx_cache.integrations.mlx_lm.server.refusals import BadRequest

_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "xtc_probability",
    "xtc_threshold",
)
_COUNTS = (
    "max_tokens",
    "max_completion_tokens",
    "top_k",
    "top_logprobs",
    "num_draft_tokens",
    "repetition_context_size",
    "presence_context_size",
    "frequency_context_size",
)
_NAMES = ("model", "draft_model", "adapters")
_OBJECTS = ("stream_options", "chat_template_kwargs", "role_mapping")

MOST_DRAFT_TOKENS = 256
MOST_NAME = 4096
MOST_STOP_CHARACTERS = 4096


def check_body(body: Mapping[str, Any], *, chat: bool) -> None:
    """Raise BadRequest for a body that no model could answer; a field left out is never wrong."""
    if chat:
        _check_messages(body.get("messages"))
    else:
        _check_prompt(body.get("prompt"))
    _check_stop(body.get("stop"))
    _check_logit_bias(body.get("logit_bias"))
    for name in _NUMBERS:
        if name in body:
            _check_number(name, body[name])
    for name in _COUNTS:
        value = body.get(name)
        fits = value is None or (_is_int(value) and abs(value) < 2**31)
        _expect(name, "a whole number below 2**31", fits)
    for name in ("max_tokens", "max_completion_tokens"):
        # mlx-lm 0.32.0 does not look.
        _expect(name, "at least 1", body.get(name) is None or body[name] >= 1)
    _expect("xtc_threshold", "at most 0.5", body.get("xtc_threshold", 0) <= 0.5)
    seed = body.get("seed")
    fits = seed is None or (_is_int(seed) and 0 <= seed < 2**64)
    _expect("seed", "a whole number from 0 to 2**64 - 1", fits)
    drafts = body.get("num_draft_tokens") or 0
    _expect("num_draft_tokens", f"at most {MOST_DRAFT_TOKENS}", drafts <= MOST_DRAFT_TOKENS)
    for name in _NAMES:
        value = body.get(name)
        fits = value is None or (isinstance(value, str) and len(value) <= MOST_NAME)
        _expect(name, f"a string of at most {MOST_NAME} characters", fits)
    tools = body.get("tools") or []
    fits = isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)
    _expect("tools", "a list of objects", fits)
    for name in _OBJECTS:
        value = body.get(name)
        _expect(name, "an object", value is None or isinstance(value, dict))
    options = body.get("stream_options")
    usable = not options or "include_usage" in options
    _expect("stream_options", "an object with include_usage", usable)


def check_tokens(prompt: Any, vocabulary: int) -> None:
    """Raise BadRequest unless `prompt` is a list of one token or more that the model has."""
    _expect("the prompt", "at least one token long", isinstance(prompt, list) and bool(prompt))
    known = min(prompt) >= 0 and max(prompt) < vocabulary
    _expect("the prompt", f"of tokens from 0 to {vocabulary - 1}", known)


def check_sampling(logit_bias: Mapping[int, float] | None, top_k: int, vocabulary: int) -> None:
    """Raise BadRequest for a token that the model lacks, or for more of them than it has."""
    known = all(0 <= token < vocabulary for token in logit_bias or ())
    _expect("logit_bias", f"of tokens from 0 to {vocabulary - 1}", known)
    _expect("top_k", f"below {vocabulary}, the size of the vocabulary", top_k < vocabulary)


def _check_prompt(prompt: Any) -> None:
    tokens = isinstance(prompt, list) and all(map(_is_int, prompt))
    fits = bool(prompt) and (isinstance(prompt, str) or tokens)
    _expect("prompt", "a string that is not empty, or a list of token ids", fits)


def _check_messages(messages: Any) -> None:
    _expect("messages", "a list that is not empty", isinstance(messages, list) and bool(messages))
    for number, message in enumerate(messages):
        name = f"messages[{number}]"
        fits = isinstance(message, dict) and isinstance(message.get("role"), str)
        _expect(name, "an object with a role", fits)
        content = message.get("content")
        parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
        fits = content is None or isinstance(content, str) or parts
        _expect(f"{name}.content", "a string or a list of objects", fits)


def _check_stop(stop: Any) -> None:
    words = isinstance(stop, list) and all(isinstance(word, str) and word for word in stop)
    fits = stop is None or isinstance(stop, str) or words
    _expect("stop", "a string, or a list of strings that are not empty", fits)
    # An automaton is built of them, some kilobytes for each character, and kept.
    most = f"at most {MOST_STOP_CHARACTERS} characters long, all together"
    _expect("stop", most, len("".join(stop or ())) <= MOST_STOP_CHARACTERS)


def _check_logit_bias(bias: Any) -> None:
    if bias is None:
        return
    keyed = isinstance(bias, dict) and all(key.removeprefix("-").isdecimal() for key in bias)
    _expect("logit_bias", "an object of numbers by token id", keyed)
    for token, value in bias.items():
        _check_number(f"logit_bias[{token}]", value)


def _check_number(name: str, value: Any) -> None:
    # NaN is at most nothing; MLX makes 32-bit scalars of the rest, and throws when it cannot.
    fits = (_is_int(value) or isinstance(value, float)) and abs(value) <= 1e9
    _expect(name, "a number from -1e9 to 1e9", fits)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _expect(name: str, what: str, fits: bool) -> None:
    if not fits:
        raise BadRequest(f"{name} must be {what}")
