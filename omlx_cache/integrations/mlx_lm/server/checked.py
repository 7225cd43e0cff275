"""mlx-lm's ResponseGenerator, kept from requests that would end its thread."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.server import ResponseGenerator

from omlx_cache.integrations.mlx_lm.server.requests import BadRequest, check_sampling, check_tokens


class CheckedResponseGenerator(ResponseGenerator):  # type: ignore[misc]
    """Refuses what the model that was asked for cannot take: BadRequest from `generate`.

    Tokenising is the first thing that its thread does with a request, and the last whose errors
    mlx-lm gives back to the client. `_vocabulary` belongs to that thread.
    """

    def __init__(self, provider: Any, cache: Any) -> None:
        self._vocabulary: tuple[Any, int] = (None, 0)
        super().__init__(provider, cache)

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> tuple[Any, ...]:
        try:
            parts = self._parts(tokenizer, request, args)
            # It is kept, so that building it again, where an error is fatal, succeeds.
            self._make_state_machine(self.model_provider.model_key, tokenizer, args.stop_words)
        except Exception as error:
            raise BadRequest(f"this prompt cannot be tokenised: {error}") from error
        vocabulary = self._vocabulary_size()
        check_tokens(parts[0], vocabulary)
        check_sampling(args.logits.logit_bias, args.sampling.top_k, vocabulary)
        return parts

    def _parts(self, tokenizer: Any, request: Any, args: Any) -> tuple[Any, ...]:
        if isinstance(request.prompt, list):
            tokens = list(request.prompt)
            return tokens, [tokens], ["assistant"], "normal", None
        return tuple(super()._tokenize(tokenizer, request, args))

    def _vocabulary_size(self) -> int:
        """Return how many tokens the models that are loaded have in common; evaluates nothing."""
        provider = self.model_provider
        if self._vocabulary[0] != provider.model_key:
            models = [m for m in (provider.model, provider.draft_model) if m is not None]
            self._vocabulary = (provider.model_key, min(map(_logits, models)))
        return self._vocabulary[1]


def _logits(model: Any) -> int:
    """Return how many logits a model gives: what its graph says, which is never run."""
    return int(model(mx.array([[0]]), cache=make_prompt_cache(model)).shape[-1])
