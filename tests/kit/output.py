"""Whether what a command printed with `--format json` is what its schema says."""

from functools import cache
from typing import Any

import jsonschema

from omlx_cache_daemon.schemas import whole

Schema = dict[str, Any]


@cache
def schema() -> Schema:
    """Return what `omlx-cache config --schema` prints."""
    return whole()


def check_output(name: str, document: object) -> None:
    """Fail unless a document is what `$defs` says of `name`, and says no more than that.

    Readers take fields that they do not know; here one means that the schema lacks it.
    """
    known = schema()["$defs"]
    defs = {key: _closed(value, is_part=key[0].isupper()) for key, value in known.items()}
    root = {**schema(), "$ref": f"#/$defs/{name}", "$defs": defs}
    jsonschema.Draft202012Validator(root).validate(document)


def _closed(given: Any, *, is_part: bool = False) -> Any:
    """Return a schema whose maps take no fields but those that it names. A part, as each of `allOf`
    and what commands share, stays open: what refers to it closes the whole."""
    if not isinstance(given, dict):
        return given
    shown = dict(given)
    for name in ("items", "additionalProperties"):
        if name in shown:
            shown[name] = _closed(shown[name])
    if "properties" in shown:
        shown["properties"] = {key: _closed(item) for key, item in shown["properties"].items()}
    if "anyOf" in shown:
        shown["anyOf"] = [_closed(item, is_part=is_part) for item in shown["anyOf"]]
    if "allOf" in shown:
        shown["allOf"] = [_closed(item, is_part=True) for item in shown["allOf"]]
    names_fields = {"properties", "allOf", "$ref"} & set(shown)
    if names_fields and not is_part and "additionalProperties" not in shown:
        shown["unevaluatedProperties"] = False
    return shown
