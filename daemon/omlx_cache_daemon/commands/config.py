"""`omlx-cache config`: every setting, its value and where the value came from."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from omlx_cache.control.errors import ControlError
from omlx_cache.control.socket_paths import search_places
from omlx_cache.settings.names import ConfigError, refusal
from omlx_cache_daemon.argument_types import complete_by
from omlx_cache_daemon.client import Client, Map, as_map
from omlx_cache_daemon.errors import OK, CommandError, UsageError
from omlx_cache_daemon.render import print_answer, table, text, uses_styles, warn
from omlx_cache_daemon.stores import add_store_options, chosen, running

_DEFAULT_OF_SERVER = "default of serve"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "config",
        description="Shows the settings of the running store, and what would be different for one "
        "that is started here. Without a running store, or with --here: the latter.",
        epilog="words are completed after: source <(omlx-cache config --completion bash)",
    )
    add_store_options(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--here", action="store_true", help="what a store that is started in this shell would have"
    )
    complete_by(
        _schema_names,
        shown.add_argument(
            "--schema",
            nargs="?",
            const="",
            metavar="NAME",
            help="print the JSON Schema (draft 2020-12) of what a command prints with --format "
            "json, such as stats or ls-pages; without a name, of all. Within a schema_version "
            "fields are added and none is removed",
        ),
    )
    shown.add_argument(
        "--completion",
        choices=("bash", "zsh", "fish"),
        help="print a script that has a shell complete commands, flags and values",
    )


def run(args: argparse.Namespace) -> int:
    if args.completion is not None:
        from argcomplete.shell_integration import shellcode

        sys.stdout.write(shellcode(["omlx-cache"], shell=args.completion))
    elif args.schema is not None:
        sys.stdout.write(_schema(args.schema))
    else:
        _print(args)
    return OK


def _schema_names(prefix: str, args: argparse.Namespace) -> list[str]:
    from omlx_cache_daemon.schemas import names

    return names()


def _schema(name: str) -> str:
    from omlx_cache_daemon.schemas import names, schema_of, whole

    if name not in ("", *names()):
        raise UsageError(refusal("schema", name, names()))
    # Not print_json: the document has no version of its own but its $id.
    return json.dumps(schema_of(name) if name else whole(), indent=2) + "\n"


def _print(args: argparse.Namespace) -> None:
    store = None if args.here else _store(args)
    shown = _of_shell() if store is None else _of_store(store, args.timeout)
    places = [str(place) for place in search_places()]
    rows = []
    for name, setting in shown["settings"].items():
        other = shown["here"].get(name)
        here = "" if other is None else f"{other['rendered']} ({other['origin']})"
        rows.append((name, setting.get("rendered"), here, setting.get("origin")))
    headers = ("SETTING", "VALUE", "HERE", "ORIGIN")
    told = (
        f"{_whose(shown)}\n\n{table(headers, rows, bold=uses_styles(sys.stdout))}\n"
        f"Control sockets are looked for in {text(places)}\n"
        + "".join(f"Note: {text(note)}\n" for note in shown["notes"])
    )
    print_answer(args.format == "json", {**shown, "runtime_dirs": places}, told)


def _whose(shown: dict[str, Any]) -> str:
    process = shown["process"]
    if not isinstance(process, dict):
        return "Settings of a store that is started here"
    here = "; HERE is what one that is started in this shell would have" * bool(shown["here"])
    return f"Settings of {text(process['title'])}, process {text(process['pid'])}{here}"


def _store(args: argparse.Namespace) -> Client | None:
    """Return the store to ask: the one that runs, or that is chosen; None for this shell."""
    if args.pid is not None or args.socket is not None:
        return chosen(args)[0]
    stores = running()
    pids = ", ".join(str(store.pid) for store in stores)
    warn(
        {
            f"{len(stores)} stores are running (processes {pids}), and this is what one that is "
            "started here would have; --pid shows theirs": len(stores) > 1
        }
    )
    return stores[0] if len(stores) == 1 else None


def _of_shell() -> dict[str, Any]:
    """Raises ConfigError."""
    from omlx_cache.settings import CacheSettings
    from omlx_cache.upkeep.directory import expected

    settings = CacheSettings()
    known = {name: source.to_dict() for name, source in settings.sources().items()}
    if not settings.hot_cache_only:
        known["cold_bytes"] = expected(settings).shown(known["cold_bytes"])
    return {"process": None, "settings": known, "here": {}, "notes": settings.notes()}


def _of_store(store: Client, timeout: float) -> dict[str, Any]:
    """Raises CommandError."""
    try:
        reply = as_map(store.within(timeout).call("config"))
    except ControlError as error:
        if error.code != "not_found":
            raise
        raise CommandError(
            f"the store in process {store.pid} is of a version that does not tell its settings; "
            "--here shows this shell's"
        ) from error
    theirs = {name: as_map(setting) for name, setting in as_map(reply.get("settings")).items()}
    flags = as_map(reply.get("service") or {}).get("flags")
    if isinstance(flags, list):
        theirs = {name: _of_server(name, setting, flags) for name, setting in theirs.items()}
    notes = reply.get("notes")
    said = list(notes) if isinstance(notes, list) else []
    here: dict[str, Map] = {}
    try:
        ours = _of_shell()["settings"]
        here = {
            n: ours[n] for n, one in theirs.items() if n in ours and not _agree(n, one, ours[n])
        }
    except ConfigError as error:
        said.append(f"a store cannot be started here: {error}")
    process = {
        "pid": reply.get("pid"),
        "title": text(reply.get("title")),
        "socket": str(store.path),
    }
    return {"process": process, "settings": theirs, "here": here, "notes": said}


def _of_server(name: str, setting: Map, flags: Sequence[object]) -> Map:
    """A server's arguments are flags to a person."""
    if setting.get("origin") != "argument":
        return setting
    flag = f"flag --{name.replace('_', '-')}"
    return {**setting, "origin": flag if name in flags else _DEFAULT_OF_SERVER}


def _agree(name: str, theirs: Map, ours: Map) -> bool:
    if theirs.get("value") == ours["value"]:
        return True
    if theirs.get("origin") == _DEFAULT_OF_SERVER:
        return ours["kind"] == "default"
    # A share of the disk's free space is another one each time.
    return name == "cold_bytes" and theirs.get("kind") == ours["kind"] == "derived"
