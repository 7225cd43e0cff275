"""Requests to every server, one after the other to each, for as long as it is wanted."""

import threading
import time
from dataclasses import dataclass, field

from openai import APIError, OpenAIError

from .machine import Serving

SYSTEM = "You are a helpful assistant who answers briefly and to the point. " * 6
TOPICS = 24


@dataclass
class Seen:
    """What became of requests; `_lock` guards everything."""

    answered: int = 0
    excused: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    _answers: dict[tuple[int, int], str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, what: tuple[int, int], text: str, prompt: int, cached: int) -> None:
        with self._lock:
            self.answered += 1
            self.prompt_tokens += prompt
            self.cached_tokens += cached
            if self._answers.setdefault(what, text) != text:
                self.failures.append(f"{what} was answered differently")

    def took(self, seconds: float) -> None:
        with self._lock:
            self.seconds.append(seconds)

    def excuse(self) -> None:
        with self._lock:
            self.excused += 1

    def fail(self, text: str) -> None:
        with self._lock:
            self.failures.append(text)


class Load(threading.Thread):
    """Talks to one server about one topic after the other; what one computed others find."""

    def __init__(self, serving: Serving, model: str, seen: Seen, stop: threading.Event) -> None:
        super().__init__(name=f"load-{serving.number}", daemon=True)
        self._serving, self._model, self._seen, self._stop_asked = serving, model, seen, stop

    def run(self) -> None:
        at = self._serving.number * 7
        while not self._stop_asked.is_set():
            self._turn(at % TOPICS, at // TOPICS % 3)
            at += 1

    def _turn(self, topic: int, number: int) -> None:
        messages = [
            {"role": "system", "content": f"Topic {topic}. {SYSTEM}"},
            *(
                {"role": "user", "content": f"Question {n} about {topic}?"}
                for n in range(number + 1)
            ),
        ]
        began = time.monotonic()
        try:
            with self._serving.server.client() as client:
                reply = client.chat.completions.create(
                    model=self._model, messages=messages, max_tokens=4, temperature=0
                )
        except (APIError, OpenAIError, OSError) as error:
            if self._serving.is_excused(began):
                self._seen.excuse()
                # It is being started again, which takes a while.
                self._stop_asked.wait(0.2)
            else:
                self._seen.fail(f"server {self._serving.number}: {type(error).__name__}: {error}")
            return
        if not self._serving.is_excused(began):
            self._seen.took(time.monotonic() - began)
        usage = reply.usage
        text = reply.choices[0].message.content or ""
        cached = usage.prompt_tokens_details.cached_tokens
        self._seen.answer((topic, number), text, usage.prompt_tokens, cached)
