"""Predicts how the next prompt of a conversation begins, and computes it while there is no request.

A chat template decides by what follows an answer how it writes the answer and the turns before it.
So the message that must follow is put there, with two contents: what both prompts share will not
depend on the content.
"""

import copy
import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from omlx_cache.integrations.mlx_lm.requests import REASONING, Message
from omlx_cache.integrations.mlx_lm.served_cache import ServedPromptCache
from omlx_cache.preparation import Preparation
from omlx_cache.settings.machine import saves_power
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import Tokens, as_tokens, shared_length

_log = logging.getLogger(__name__)

CALL_TOKENS = 4096
"""Prepared at most after a tool call: its result is there within seconds."""
TURN_TOKENS = 32_768
"""After a final answer, when a template may write a whole tool loop anew."""
EXPECTED = 16
EXPIRES_SECONDS = 600.0
"""After so long a conversation has most likely ended, or is cached no more."""
UNASKED = 5
"""After so many in a row that nobody asked for, one is tried in `BACK_OFF_SECONDS`."""
BACK_OFF_SECONDS = 600.0
POWER_SECONDS = 30.0
"""For how long the platform's answer counts whether it saves power."""
_PLACEHOLDERS = ("0", "x")
"""Contents that share no token."""


@dataclass(eq=False, slots=True)
class _Expected:
    """What a prompt will begin with, and how much of it may be computed. It shares `asked` tokens
    with the prompt that was answered; `deletions` were so many then."""

    key: Any
    tokens: Tokens
    most: int
    asked: int
    deletions: int
    at: float


class Preparing:
    """Computes what is expected, a chunk at a time, and stops when a request arrives. Nothing
    raises.

    `expect` and `is_worth_it` are for any thread, the rest for the one that runs the model.
    Mutable: `_expected`, the latest last, each operation on which is atomic. `_asking` guards
    `_saves`, the platform's latest answer about its power, and `_asked`, its time. The model's
    thread owns `_current`, the preparation in progress, `_of`, its expectation, and `_begun`.
    """

    def __init__(
        self,
        store: BlockStore,
        cache: ServedPromptCache,
        power: Callable[[], bool] = saves_power,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._cache = store, cache
        self._power, self._clock = power, clock
        self._expected: deque[_Expected] = deque(maxlen=EXPECTED)
        self._current: Preparation | None = None
        self._of: _Expected | None = None
        self._asked = self._begun = -math.inf
        self._saves = False
        self._asking = threading.Lock()

    @property
    def is_worth_it(self) -> bool:
        """False while nothing is prepared: it is off, memory is short, or power is saved. On macOS
        it may wait for a process."""
        if self._store.settings.prepare == "off" or self._store.is_short_of_memory:
            return False
        self._ask_for_power()
        return not self._saves

    def _ask_for_power(self) -> None:
        with self._asking:
            if not self._knows_power:
                self._saves, self._asked = self._power(), self._clock()

    @property
    def _knows_power(self) -> bool:
        return self._clock() - self._asked <= POWER_SECONDS

    def expect(
        self, key: Any, tokens: Sequence[int], most: int, prompt: Sequence[int], deletions: int
    ) -> None:
        """Note what will follow a prompt for a model: at most `most` tokens of it are computed, and
        none if there was a deletion since `deletions` were so many."""
        expected, now = as_tokens(tokens), self._clock()
        asked = shared_length(expected, as_tokens(prompt))
        self._expected.append(_Expected(key, expected, most, asked, deletions, now))

    @property
    def ready(self) -> bool:
        """Whether `step` has something to do."""
        now = self._clock()
        if self._current is None:
            if not any(now - one.at <= EXPIRES_SECONDS for one in self._expected.copy()):
                return False
            backs_off = self._store.requests.prepared.unasked(UNASKED)
            if backs_off and now - self._begun < BACK_OFF_SECONDS:
                return False
        if not self._knows_power and not self._asking.locked():
            # It may wait for a process. Without a thread it is asked for later.
            with suppress(RuntimeError):
                threading.Thread(target=self._ask_for_power, daemon=True).start()
        if self._current is not None:
            return self._current.ready
        return self._knows_power and not self._saves

    def step(self, key: Any, model: Any) -> None:
        """Compute a chunk for the model that is loaded under a key."""
        if not self.ready:
            return
        try:
            if self._current is None:
                # The latest conversation is the likeliest to go on.
                self._of = one = self._expected.pop()
                self._begun = self._clock()
                if one.key == key and self._begun - one.at <= EXPIRES_SECONDS:
                    self._current = self._cache.preparation(key, one.tokens, one.most)
                if one.deletions != self._store.deletions:
                    self._current = None
            elif self._saves or not self._current.step(model):
                self.give_up()
        except Exception:
            # Where nobody is answered, an error would end the server.
            _log.exception("a preparation ended")
            self._current = None

    def give_up(self, prompt: Sequence[int] = ()) -> None:
        """Store the tokens that were computed so far, and still expect the others; but drop the
        conversation that an arrived prompt continues."""
        if self._current is not None and self._of is not None:
            if not self._current.is_over:
                self._expected.append(self._of)
            self._current.close()
            if self._current.computed:
                self._cache.note_prepared(self._of.key, self._of.tokens)
            self._current = None
            mx.clear_cache()
        # From a list of 128,000 it takes milliseconds.
        tokens = as_tokens(prompt if self._expected else ())
        shared = {one: shared_length(one.tokens, tokens) for one in self._expected.copy()}
        # Another conversation shares no more than what clients say to all.
        continued = [one for one, length in shared.items() if length >= max(1, one.asked)]
        if continued:
            with suppress(ValueError):
                self._expected.remove(max(continued, key=shared.__getitem__))


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
    """Return an answer as this client will send it back: with the fields and the white space of its
    latest one, and with reasoning where an earlier one came with it."""
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
