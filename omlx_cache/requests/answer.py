"""The answer to `omlx-cache why`: requests with their explanations, as plain values and text."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from omlx_cache.requests.explanation import Excerpt, sentence, why
from omlx_cache.requests.log import AskedRequest, RequestLog

_log = logging.getLogger(__name__)

Plain = dict[str, object]
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


def answer(log: RequestLog, decoder: Decoder | None, last: int, number: int | None) -> Plain:
    """Return the latest requests, or the one of a number, oldest first; decodes text."""
    asked = [one for one in log.latest() if number in (None, one.record.number)][-last:]
    history = log.explainer.history
    return {
        "requests": [_request(one, decoder) for one in asked],
        "history": {
            "limit_bytes": history.limit_bytes,
            "bytes": history.nbytes,
            "since": history.began,
        },
    }


def explained(log: RequestLog, limit: int) -> list[Mapping[str, object]]:
    """Return the latest requests, newest first, each with its `why` in words that show nothing of
    its text, neither as tokens."""
    found: list[Mapping[str, object]] = []
    for asked in reversed(log.latest()[-limit:]):
        told = asked.explanation
        said = "" if told is None else why(replace(told, here=(), there=()))
        found.append({**asked.record.to_dict(), "why": said})
    return found


def _request(asked: AskedRequest, decoder: Decoder | None) -> Plain:
    record, told = asked.record, asked.explanation
    if told is None:
        return {**record.to_dict(), "explanation": None, "words": ""}

    def text(tokens: Excerpt) -> str | None:
        return decoded(decoder, list(tokens), record.model) if tokens else None

    told = replace(told, here_text=text(told.here), there_text=text(told.there))
    return {
        **record.to_dict(),
        "explanation": told.to_dict(),
        "words": sentence(told, record),
    }
