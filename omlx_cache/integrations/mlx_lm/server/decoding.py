"""Tokens as text, for `omlx-cache why`: with the tokeniser of the model that is loaded."""

from mlx_lm.server import ModelProvider

from omlx_cache.integrations.naming import model_name


class TokenDecoder:
    """Decodes tokens of the loaded model; any thread may call."""

    def __init__(self, provider: ModelProvider) -> None:
        self._provider = provider

    def __call__(self, tokens: list[int], model: str) -> str | None:
        """Return the text, None for tokens of a model that is not loaded any more."""
        key, tokenizer = self._provider.model_key, self._provider.tokenizer
        if key is None or tokenizer is None or model_name(key[0]) != model:
            return None
        # Images are named by numbers that no vocabulary has.
        return str(tokenizer.decode([token for token in tokens if token >= 0]))
