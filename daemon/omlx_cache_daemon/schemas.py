"""The JSON Schema of commands' output with `--format json`.

The schema of processes' answers is made from their dataclasses. The other schemas, and the
commands' additions to answers, ship beside this module.
"""

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from omlx_cache.control.replies import (
    Identity,
    NamespaceRow,
    PageDetails,
    PageRow,
    ProcessRow,
    WhyReply,
)
from omlx_cache.control.serialization import schema
from omlx_cache.requests.explanation import RequestRecord
from omlx_cache_storage.stats import Stats

_ANSWERS: Final = {
    "Stats": Stats,
    "Record": RequestRecord,
    "Why": WhyReply,
    "Identity": Identity,
    "Process": ProcessRow,
    "Namespace": NamespaceRow,
    "Page": PageRow,
    "PageDetails": PageDetails,
}
Schema = dict[str, Any]

_REFERENCE = re.compile(r"#/\$defs/([^\"]+)")


def whole() -> Schema:
    """Return the document: draft 2020-12, with an entry of `$defs` for each command."""
    text = files("omlx_cache_daemon").joinpath("schema.json").read_text(encoding="utf-8")
    loaded: Schema = json.loads(text)
    loaded["$defs"] |= {name: schema(kind) for name, kind in _ANSWERS.items()}
    return loaded


def names() -> list[str]:
    """Return what has a schema: commands, and what some print with other arguments."""
    return [name for name in whole()["$defs"] if name[0].islower()]


def schema_of(name: str) -> Schema:
    """Return a schema for the output of one command, with the definitions that it refers to and no
    others."""
    document = whole()
    known: Mapping[str, Any] = document["$defs"]
    wanted, found = [name], {}
    while wanted:
        one = wanted.pop()
        if one not in found:
            found[one] = known[one]
            wanted += _REFERENCE.findall(json.dumps(known[one]))
    return {
        "$schema": document["$schema"],
        "$id": f"{document['$id']}:{name}",
        "$ref": f"#/$defs/{name}",
        "$defs": {key: known[key] for key in known if key in found},
    }
