"""`omlx-cache schema`: what the JSON of commands means, for programs that read it."""

import argparse
import json
import sys

from omlx_cache.settings.names import refusal
from omlx_cache_daemon.errors import OK, UsageError
from omlx_cache_daemon.schemas import names, schema_of, whole


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "schema",
        help="print the JSON Schema of commands' output",
        description="Prints the JSON Schema (draft 2020-12) of what commands print with --format "
        "json: of one, or of all. Within a schema_version fields are added and none is removed.",
    )
    parser.add_argument(
        "name", nargs="?", metavar="COMMAND", help="such as stats, stats-watch or ls-namespace"
    )


def run(args: argparse.Namespace) -> int:
    if args.name is not None and args.name not in names():
        raise UsageError(refusal("command", args.name, names()))
    # Not print_json: the document has no version of its own but its $id.
    shown = whole() if args.name is None else schema_of(args.name)
    sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    return OK
