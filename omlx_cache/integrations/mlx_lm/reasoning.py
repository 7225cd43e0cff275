"""The reasoning of answers, which clients drop and chat templates read."""

import copy
import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

from transformers.utils import chat_template_utils

from omlx_cache.integrations.mlx_lm.requests import REASONING, Message

_log = logging.getLogger(__name__)
T = TypeVar("T")

BYTES = 16 << 20
"""Memory for the reasoning of some ten thousand answers."""
ENTRY_BYTES = 200
"""Bytes that an answer takes beside its reasoning."""
SWITCHES = {"preserve_thinking": True, "clear_thinking": False}
"""Arguments by which templates keep the reasoning of earlier turns, with the value that does."""
ADVICE = "serve --keep-reasoning gives the template the reasoning that it lacks"
_NAMES = ("reasoning_content", "reasoning", "thinking")
"""Of several names that a template reads the first is used."""
_UNIQUE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The ids that mlx-lm gives to tool calls; a model's own ids come again elsewhere."""


_ALIASES = hasattr(chat_template_utils, "_alias_reasoning_fields")
"""Newer versions of transformers write reasoning under two of its names, whatever it had."""


class _Template(NamedTuple):
    """What a chat template reads: reasoning under `name`, empty for none, which is there where a
    message has one of `names`; and switches."""

    name: str
    names: tuple[str, ...]
    switches: dict[str, bool]


class _Lacking(NamedTuple):
    """The place of an answer, and the reasoning that its template would read."""

    place: int
    reasoning: str


class KeptReasoning:
    """Remembers the reasoning of answers, and with `gives` puts what a client dropped back into its
    prompt. `template_args` are those of every request.

    An answer is found by the ids of its tool calls, or by its text and all messages before it: the
    same words in another conversation have other reasons. In memory only, `BYTES` at most; the
    latest used stay. Any thread may call; `_lock` guards `_kept` and `nbytes`.
    """

    def __init__(self, gives: bool, template_args: Mapping[str, Any]) -> None:
        self._gives = gives
        self._template_args = template_args
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self.nbytes = 0

    def answered(self, messages: Sequence[Message], answer: Message, tools: Any = None) -> None:
        """Remember the reasoning of an answer, as it was sent. Raises nothing."""
        if not answer.get("reasoning"):
            return
        try:
            *_, key = _keys([*messages, answer], tools)
        except Exception:
            return _log.debug("the reasoning of an answer is not kept", exc_info=True)
        reasoning = answer["reasoning"].encode(errors="replace") if self._gives else b""
        with self._lock:
            self._forget(key)
            self._kept[key] = reasoning
            self.nbytes += len(reasoning) + ENTRY_BYTES
            while self.nbytes > BYTES:
                self._forget(next(iter(self._kept)))

    def rendered(self, request: Any, args: Any, tokenizer: Any, render: Callable[[], T]) -> T:
        """Return the result of `render` for a request with the reasoning that its template lacks,
        or as it is where the template rejects that; raises the exceptions of `render`. Says on the
        request whether its prompt lacks what might be given."""
        request.lacks_reasoning = False
        options, messages = args.chat_template_kwargs, request.messages
        try:
            template = _template_of(tokenizer)
            lacking = list(self._lacking(request, template.names))
            known = {**self._template_args, **(options or {})}
            if not self._gives:
                is_kept = template.switches.items() <= known.items()
                request.lacks_reasoning = _helps(messages, template.names, lacking, is_kept)
        except Exception:
            _log.debug("what a prompt lacks is not known", exc_info=True)
            return render()
        if not self._gives or not (lacking or template.switches):
            return render()
        try:
            # Rendering changes messages.
            request.messages = copy.deepcopy(messages)
            args.chat_template_kwargs = {**template.switches, **known}
            for one in lacking:
                request.messages[one.place][template.name] = one.reasoning
            return render()
        except Exception:
            _log.debug("a prompt is rendered as its client sent it", exc_info=True)
        args.chat_template_kwargs, request.messages = options, messages
        return render()

    def _lacking(self, request: Any, names: Sequence[str]) -> Iterator[_Lacking]:
        """Yield the answers whose reasoning is known, and is not under a name that is read."""
        has_any = self._kept or any(m.get(name) for m in request.messages for name in REASONING)
        if not (names and has_any):
            return
        for place, key in enumerate(_keys(request.messages, request.tools)):
            message = request.messages[place]
            if not key or any(message.get(name) for name in names):
                continue
            sent = next((message[name] for name in REASONING if message.get(name)), None)
            with self._lock:
                kept = self._kept.get(key)
                if kept is not None:
                    self._kept.move_to_end(key)
            if sent is not None or kept is not None:
                yield _Lacking(place, sent or (kept or b"").decode())

    def _forget(self, key: bytes) -> None:
        reasoning = self._kept.pop(key, None)
        if reasoning is not None:
            self.nbytes -= len(reasoning) + ENTRY_BYTES


def _keys(messages: Sequence[Message], tools: Any) -> Iterator[bytes]:
    """Yield the key by which each message is found, empty for one that is no answer."""
    seed = sha256(_canonical(tools or None))
    said = seed.copy()
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(
                part["text"] if part.get("type") == "text" else str(part) for part in content
            )
        calls = message.get("tool_calls") or ()
        ids = [str(call.get("id")) for call in calls]
        called = _canonical([_arguments(call["function"]) for call in calls])
        # Clients strip texts.
        text = str(content or "").strip().encode(errors="surrogatepass")
        said.update(_canonical([message.get("role"), len(text)]) + text + called)
        if message.get("role") != "assistant":
            yield b""
        elif ids and all(map(_UNIQUE.fullmatch, ids)):
            yield sha256(seed.digest() + _canonical(ids) + called).digest()
        else:
            yield said.digest()


def _arguments(function: Mapping[str, Any]) -> list[Any]:
    """Return a call's name and arguments, which are JSON until mlx-lm parses them."""
    arguments = function.get("arguments")
    return [
        function.get("name"),
        json.loads(arguments) if isinstance(arguments, str) else arguments,
    ]


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()


def _helps(
    messages: Sequence[Message], names: Sequence[str], lacking: Sequence[_Lacking], is_kept: bool
) -> bool:
    """True when a message since the last question lacks reasoning, or when the template drops some
    that it could keep. `is_kept`: its switches to keep reasoning are set, or it has none."""
    asked = max((at for at, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    if any(one.place > asked for one in lacking):
        return True
    has_any = bool(lacking) or any(m.get(name) for m in messages for name in names)
    return has_any and not is_kept


def _template_of(tokenizer: Any) -> _Template:
    source = tokenizer.chat_template
    if isinstance(source, dict):
        source = "\n".join(source.values())
    # One that is code is mlx-lm's own.
    return _read_by(source if isinstance(source, str) else f".{_NAMES[0]}")


@lru_cache(maxsize=8)
def _read_by(source: str) -> _Template:
    names = tuple(n for n in _NAMES if re.search(rf"[.'\"]{n}\b", source))
    switches = {n: value for n, value in SWITCHES.items() if re.search(rf"\b{n}\b", source)}
    name = names[0] if names else ""
    is_aliased = _ALIASES and name in ("reasoning_content", "thinking")
    return _Template(name, REASONING if is_aliased else names, switches)
