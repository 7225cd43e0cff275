"""The answer to `omlx-cache why`: requests with their explanations, as plain values."""

import logging
from collections.abc import Callable
from dataclasses import asdict

from omlx_cache.requests.log import AskedRequest, RequestLog
from omlx_cache.requests.words import sentence

_log = logging.getLogger(__name__)

Decoder = Callable[[list[int], str], str | None]
"""Turns tokens into text, for the model of a label; None for a model that it does not know."""

Plain = dict[str, object]


def answer(log: RequestLog, decoder: Decoder | None, last: int, number: int | None) -> Plain:
    """Return the latest requests, or the one of a number, oldest first; decodes text."""
    asked = [one for one in log.latest() if number in (None, one.record.number)][-last:]
    history = log.explainer.history
    shown = {one.record.namespace for one in asked}
    lines = [asdict(line) for line in log.habits.lines() if line.namespace in shown]
    for line in lines:
        line["text"] = _text_of(log, decoder, line.get("last_request"))
    return {
        "requests": [_request(one, decoder) for one in asked],
        "changing_lines": lines,
        "history": {
            "limit_bytes": history.limit_bytes,
            "bytes": history.nbytes,
            "since": history.began,
        },
    }


def _request(asked: AskedRequest, decoder: Decoder | None) -> Plain:
    record = asked.record.to_dict()
    told = asked.explanation
    if told is None:
        return {**record, "explanation": None, "words": ""}
    explanation = told.to_dict()
    model = asked.record.model
    for side in ("here", "there"):
        tokens = list(getattr(told, side))
        text = decoded(decoder, tokens, model) if tokens else None
        if text is not None:
            explanation[f"{side}_text"] = text
    return {**record, "explanation": explanation, "words": sentence(explanation, record)}


def _text_of(log: RequestLog, decoder: Decoder | None, number: object) -> str | None:
    for asked in log.latest():
        told = asked.explanation
        if asked.record.number == number and told is not None:
            return decoded(decoder, list(told.here), asked.record.model)
    return None


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
