"""ServedRequest: one request of mlx-lm's server, from its arrival to its last token."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from mlx_lm.server import GenerationContext, Response

from omlx_cache.flights import PromptFlight
from omlx_cache.mlx_lm_versions import has_images
from omlx_cache.requests.explanation import brief, waited_for
from omlx_cache.requests.log import AskedRequest
from omlx_cache_storage.eviction.order import Ended

_log = logging.getLogger(__name__)

CLIENT_LEFT = "client left"
CUT_OFF = "cut off"
FAILED = "failed"
REASONING = ("reasoning", "reasoning_content", "thinking")
"""Names under which clients send reasoning back, and templates read it."""

Message = Mapping[str, Any]


class Refused(Exception):
    """A request is not answered; text and HTTP status are for its client."""

    status = 500


class BadRequest(Refused):
    """The text says what was expected."""

    status = 400


class NotServed(Refused):
    """The model that the client named cannot be loaded; the text names one that can."""

    status = 404


class TooLarge(Refused):
    """The text names the flag that allows more."""

    status = 413


class Unavailable(Refused):
    """The server is ending."""

    status = 503


class ClientLeft(Refused, ConnectionError):
    """Nobody waits for the answer any more; one that closed its half alone is told."""

    status = 499

    def __str__(self) -> str:
        return "the client closed its connection, or its half, before it had the answer"


class SentAnswer:
    """An answer as its client was sent it. Of the client's thread."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._texts = {"content": "", "reasoning": ""}
        self._calls: list[Any] = []

    def add(self, response: Mapping[str, Any]) -> None:
        """Take a piece, or the whole."""
        (choice,) = response["choices"]
        message = choice.get("delta") or choice.get("message") or {}
        for name in self._texts:
            self._texts[name] += message.get(name) or ""
        self._calls += message.get("tool_calls") or ()
        self.finish_reason = choice["finish_reason"] or self.finish_reason

    @property
    def message(self) -> dict[str, Any]:
        texts = {name: text for name, text in self._texts.items() if text}
        calls = {"tool_calls": self._calls} if self._calls else {}
        return {"role": "assistant", "content": "", **texts, **calls}


class ServedRequest:
    """Stands in for the queue on which mlx-lm's generation thread answers one client.

    The client's thread makes it, and sets `parts` (its tokenised prompt), `tokenizer`, `flight`,
    `held_seconds` and `waited_for` (the number of the request that it waited for) before it is
    queued. From then on the generation thread owns it. `_text` is the answer, and `alone` takes the
    computed tokens of a request that is served alone. `note_end` gets the end of the answer, and
    `has_left` tells any thread whether the client closed its connection.
    """

    def __init__(
        self,
        note_end: Callable[[Ended | None], None],
        offered_tools: bool,
        has_left: Callable[[], bool] = bool,
    ) -> None:
        self.has_left = has_left
        self.arrived = time.perf_counter()
        self.held_seconds = 0.0
        self.waited_for: int | None = None
        self.parts: tuple[Any, ...] | None = None
        self.tokenizer: Any = None
        self.flight: PromptFlight | None = None
        self.queue: Any = None
        self.asked: AskedRequest | None = None
        self.alone: Callable[[Any], None] | None = None
        self.lacks_reasoning = False
        self.is_over = False
        self._note_end = note_end
        self._context: Any = None
        self._offered_tools = offered_tools
        self._text = ""

    def put(self, item: Any) -> None:
        """Send an item to the client's thread, and end the request of a client that left. Raises
        ClientLeft in the prefill of a request that is served alone: mlx-lm would go on."""
        if isinstance(item, Exception):
            # The error's traceback keeps what would have ended the flight.
            self.land()
            if self._context is not None:
                # The prompt was accepted: the computation has failed.
                return self.fail(item)
        if isinstance(item, GenerationContext):
            self._context = item
        elif self.alone is not None:
            self.alone(item)
        if isinstance(item, tuple | Response) and self.has_left():
            if self.alone is not None and isinstance(item, tuple):
                raise ClientLeft
            return self.fail(ClientLeft())
        if isinstance(item, Response):
            self._text += item.text
            if item.finish_reason is not None:
                self._note_end(self._how_ended(item.finish_reason))
        self.is_over = self.is_over or item is None
        self.queue.put(item)

    def fail(self, error: Exception) -> None:
        """End the request with an error; one that has its answer keeps it."""
        self.land()
        if self.is_over:
            return
        self.is_over = True
        if not isinstance(error, Refused):
            text = f"the model failed: {type(error).__name__}: {error}"
            _log.error("%s", text, exc_info=error)
            error = Refused(text)
        if self._context is not None:
            self._context.stop()
        self.queue.put(error)

    def land(self) -> None:
        """Tell the requests that wait for the prompt that no more of it is computed."""
        if self.flight is not None:
            self.flight.end()

    def _how_ended(self, finish_reason: str) -> Ended | None:
        """Return how an answer ended: with a tool call, where the client's handler will find one.
        A client that offered no tools may call them in words of its own: that is unknown."""
        if finish_reason == "length":
            return "length"
        # mlx-lm before 0.32 has no machine that could tell.
        machine = getattr(self._context, "text_sm", None)
        if not (self._offered_tools and machine and self._context.has_tool_calling):
            return None
        try:
            begun = machine.make_state(self._context.initial_state)
            _state, segments = machine.split(begun, self._text)
        except Exception:
            _log.debug("how an answer ends is not known", exc_info=True)
            return None
        return "tool_call" if any(state == "tool" for state, _text in segments) else "turn"

    def line(self, out: int, first: float | None, early: str, notes: str) -> str:
        """Return the line for the log: tokens `out`, seconds to the `first`, and why it ended
        `early`, if it did. It names no tokens that were not computed."""
        ends = f", {early}" * bool(early)
        if self.asked is None:
            tokens = len(self.parts[0]) if self.parts else 0
            seconds = time.perf_counter() - self.arrived
            what = f"{out} out" if out else "ended before its turn"
            return f"request: {tokens} tokens in, {what}, total {seconds:.3f} s{ends}"
        record, told = self.asked.record, self.asked.explanation
        restored, cold, remote = record.restored_tokens, record.cold_tokens, record.remote_tokens
        where = f"{restored - cold - remote} hot, {cold} cold" + f", {remote} remote" * bool(remote)
        where += f", {record.prepared_tokens} prepared while idle" * bool(record.prepared_tokens)
        rest = record.prompt_tokens - restored
        computed = f"{record.computed_tokens} of {rest}" if early and not out else str(rest)
        why = "" if told is None else brief(told)
        begun = "" if first is None else f", first token {first:.3f} s"
        held = record.held_seconds
        notes += f", held {held:.1f} s for {waited_for(record)}" if held else ""
        return (
            f"request {record.number}: {record.prompt_tokens} tokens in, {restored} restored "
            f"({where}), {computed} recomputed{why}, {out} out{begun}, "
            f"total {record.total_seconds or 0.0:.3f} s{ends}{notes}"
        )


def check_tokens(tokens: Iterable[Any], tokenizer: Any) -> None:
    """Raise ValueError for a number that is no token: MLX would read or write beyond its arrays."""
    vocabulary = _vocabulary(tokenizer)
    if any(type(token) is not int or not 0 <= token < vocabulary for token in tokens):
        raise ValueError(f"tokens are whole numbers from 0 to {vocabulary - 1}")


@lru_cache(maxsize=2)
def _vocabulary(tokenizer: Any) -> int:
    """Return the number after a tokeniser's last token. It builds all 150,000 tokens, in a tenth of
    a second or more, while no request is answered: so once."""
    return int(max(tokenizer.get_vocab().values())) + 1


def length_of(request: Any) -> int:
    """Return how many characters the texts of a request have, 0 for one with images."""
    if has_images(request.messages):
        return 0
    prompt = request.prompt if isinstance(request.prompt, str) else ""
    return _characters([prompt, request.messages, request.tools])


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return sum(map(_characters, value)) if isinstance(value, list) else 1


def too_long(tokens: str, most: int) -> Refused:
    return BadRequest(
        f"the prompt has {tokens} tokens, and {most} is the most for this model "
        "(serve --max-prompt-tokens)"
    )
