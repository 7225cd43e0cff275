"""How answers end: what mlx-lm's handler tells a client, known where the answer is stored."""

from typing import Any

from omlx_cache_storage.hints import Ended


class Ending:
    """Reads what one client is sent, and says how the answer ended. Never raises.

    Nobody knows for a client that offered no tools: it may call them in words of its own. Mutable,
    by the generation thread: `_state` (None for an mlx-lm that has no state machine) and `_called`.
    """

    def __init__(self, context: Any, offered_tools: bool) -> None:
        self._offered = offered_tools
        self._called = False
        self._state: Any = None
        try:
            self._offered = offered_tools and bool(context.has_tool_calling)
            self._machine = context.text_sm
            self._state = self._machine.make_state(context.initial_state)
        except Exception:
            self._offered = False

    def read(self, text: str, finish_reason: str | None) -> Ended | None:
        """Take the next piece of the answer; return how it ended when it was the last."""
        if self._offered and not self._called and finish_reason != "stop":
            try:
                self._state, segments = self._machine.split(self._state, text)
                self._called = any(state == "tool" for state, _text in segments)
            except Exception:
                self._offered = False
        if finish_reason == "length":
            return "length"
        if finish_reason != "stop" or not self._offered:
            return None
        return "tool_call" if self._called else "turn"
