"""Documents as JSON that every reader takes: on one line, with null for what is no number."""

import json
import math
from collections.abc import Mapping

Document = Mapping[str, object]
"""What JSON has: texts, numbers, lists and maps."""


def encoded(document: object) -> bytes:
    """Return a document of plain values as JSON, in ASCII; raises TypeError for other values."""
    try:
        text = json.dumps(document, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(document), allow_nan=False)
    return text.encode("ascii")


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
