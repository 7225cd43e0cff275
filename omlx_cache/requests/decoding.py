"""Tokens as text, where somebody can tell: what a server sets, and what `why` and the page use."""

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)

Decoder = Callable[[list[int], str], str | None]
"""Turns tokens into text, for the model of a label; None for a model that it does not know."""


def decoded(decoder: Decoder | None, tokens: list[int], model: str) -> str | None:
    """Return tokens as text, None when nobody can tell; never raises."""
    if decoder is None:
        return None
    try:
        text = decoder(tokens, model)
    except Exception as error:
        _log.debug("tokens are not decoded: %s", error)
        return None
    return text if isinstance(text, str) else None
