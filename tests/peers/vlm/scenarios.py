"""What is asked of a loaded model in each scenario: requests, and the answers in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from vlm.drive import Asked, VlmAnswer, Worker
from vlm.models import IMAGE_TOKEN, IMAGE_TOKENS

TURNS = 4
Scenario = Callable[[Worker], list[VlmAnswer]]


def text(count: int, topic: int = 0) -> list[int]:
    """Return token ids that are the same in every process; no special one, no image's."""
    return [(7 * i * i + i + topic * i) % 120 for i in range(count)]


def turns(worker: Worker) -> list[VlmAnswer]:
    """A conversation: each prompt is the last one, its answer, and something new."""
    prompt, answers = text(100), []
    for turn in range(TURNS):
        answers.append(worker.say(prompt))
        prompt = prompt + answers[-1].tokens + text(30, turn + 1)
    return answers


def branches(worker: Worker) -> list[VlmAnswer]:
    """Prompts that part from one that was asked before: early, late, and inside a block."""
    root = text(200)
    return [worker.say(root)] + [worker.say(root[:n] + text(40, n)) for n in (64, 150, 199)]


def together(worker: Worker) -> list[VlmAnswer]:
    """Known and new prompts of different lengths that arrive at once."""
    first = worker.say(text(120))
    return [
        first,
        *worker.ask(
            Asked(text(120) + text(20, 3)),
            Asked(text(90, 7)),
            Asked(text(110) + text(45, 5)),
        ),
    ]


def while_another_answers(worker: Worker) -> list[VlmAnswer]:
    """A known prompt that joins a batch whose first row is in the middle of its answer."""
    known = worker.say(text(90))
    generator = worker.generator()
    said: dict[int, list[int]] = {}
    cached: dict[int, int] = {}
    uids = [worker.insert(generator, Asked(text(75, 6), generate=24))]
    while generator.has_work:
        prompts, generated = generator.next()
        cached |= {prompt.uid: prompt.cached_tokens for prompt in prompts}
        for response in generated:
            said.setdefault(response.uid, []).append(int(response.token))
        if len(uids) == 1 and len(said.get(uids[0], [])) == 5:
            uids.append(worker.insert(generator, Asked(text(90) + text(25, 8))))
    generator.close()
    return [known] + [VlmAnswer(said[uid], cached[uid]) for uid in uids]


def new_words_only(seen: mx.array, logits: mx.array) -> mx.array:
    """Take the tokens that a prompt and its answer have had from the choice."""
    had = (mx.arange(logits.shape[-1])[:, None] == seen[None]).any(axis=1)
    return mx.where(had, logits - 1e3, logits)


def penalised(worker: Worker) -> list[VlmAnswer]:
    """Prompts whose answers depend on the tokens of the prompt, not on their KV alone."""
    prompts = text(100), text(100), text(100) + text(30, 3)
    return [worker.say(prompt, processors=[new_words_only]) for prompt in prompts]


def picture(shade: float) -> Any:
    return mx.full((1, 3, 16, 16), shade) * mx.arange(16)


def with_picture(count: int = 60, topic: int = 0) -> list[int]:
    """Return a prompt with a place for a picture in it."""
    words = text(count, topic)
    return words[:20] + [IMAGE_TOKEN] * IMAGE_TOKENS + words[20:]


def pictures(worker: Worker) -> list[VlmAnswer]:
    """The same words with one picture, another, none of a tenant's, and the first again."""
    prompt = with_picture()
    one, other = picture(0.1), picture(-0.7)
    asked = [
        Asked(prompt, one),
        Asked(prompt, other),
        Asked(prompt + text(20, 3), one),
        Asked(prompt + text(20, 3), other),
        Asked(prompt + text(20, 3), one, tenant="a"),
        Asked(text(60)),
    ]
    return [answer for request in asked for answer in worker.ask(request)]


SCENARIOS: dict[str, Scenario] = {
    "turns": turns,
    "branches": branches,
    "together": together,
    "while another answers": while_another_answers,
    "penalised": penalised,
}
