"""The answer to `omlx-cache why`: requests with their explanations, as plain values."""

from collections.abc import Mapping
from dataclasses import asdict

from omlx_cache.requests.decoding import Decoder, decoded
from omlx_cache.requests.log import AskedRequest, RequestLog
from omlx_cache.requests.words import sentence, why

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


def explained(log: RequestLog, limit: int) -> list[Mapping[str, object]]:
    """Return the latest requests, newest first, each with its `why` in words that show nothing of
    its text, neither as tokens."""
    found: list[Mapping[str, object]] = []
    for asked in reversed(log.latest()[-limit:]):
        record, told = asked.record.to_dict(), asked.explanation
        plain = {} if told is None else {**told.to_dict(), "here": [], "there": []}
        found.append({**record, "why": why(plain)})
    return found


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
