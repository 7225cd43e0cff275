"""Drives mlx-vlm's BatchGenerator the way its server's worker does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_vlm import apc
from mlx_vlm.generate.ar import BatchGenerator
from mlx_vlm.utils import StoppingCriteria

Makes = Callable[..., Any]


class VlmAnswer(NamedTuple):
    """Tokens of an answer, and how much of its prompt was restored."""

    tokens: list[int]
    cached: int


class Asked(NamedTuple):
    """A request: token ids, and a picture for models that see."""

    tokens: Sequence[int]
    pixels: Any = None
    tenant: str | None = None
    generate: int = 12
    processors: Any = None


class Worker:
    """One loaded model and what serves it; `make` is the class of its generator."""

    def __init__(
        self, model: Any, manager: Any = None, make: Makes = BatchGenerator, **options: Any
    ) -> None:
        self.model, self.manager, self._make = model, manager, make
        self._options = {"prefill_step_size": 64, "compute_logprobs": False, **options}
        self._processor = SimpleNamespace(stopping_criteria=StoppingCriteria([]))

    def generator(self) -> Any:
        """Return a generator, as the worker makes one after each pause."""
        return self._make(
            self.model.language_model,
            self._processor,
            apc_manager=self.manager,
            **self._options,
        )

    def insert(self, generator: Any, asked: Asked) -> int:
        """Embed and insert a request, as `ResponseGenerator` does."""
        ids = mx.array([list(asked.tokens)])
        embedded = self.model.get_input_embeddings(ids, asked.pixels, mask=None)
        given = {k: v for k, v in embedded.to_dict().items() if v is not None}
        pixels = asked.pixels
        given["_apc_semantic_hash"] = apc.semantic_extra_hash(
            tenant=asked.tenant,
            image_hash=0 if pixels is None else apc.hash_image_payload(pixel_values=pixels),
            model=self.model.language_model,
        )
        (uid,) = generator.insert(
            [list(asked.tokens)],
            max_tokens=asked.generate,
            prompt_kwargs=[given],
            logits_processors=[asked.processors],
        )
        return int(uid)

    def ask(self, *requests: Asked) -> list[VlmAnswer]:
        """Answer requests that arrive together."""
        generator = self.generator()
        uids = [self.insert(generator, asked) for asked in requests]
        said: dict[int, list[int]] = {uid: [] for uid in uids}
        cached = dict.fromkeys(uids, 0)
        while generator.has_work:
            prompts, generated = generator.next()
            cached |= {p.uid: p.cached_tokens for p in prompts}
            for response in generated:
                said[response.uid].append(int(response.token))
        generator.close()
        return [VlmAnswer(said[uid], cached[uid]) for uid in uids]

    def say(self, tokens: Sequence[int], **more: Any) -> VlmAnswer:
        """Answer one request alone."""
        (answer,) = self.ask(Asked(tokens, **more))
        return answer
