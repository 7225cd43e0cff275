"""`omlx-cache monitor`: one line for each request of a store, as it ends."""

import argparse
import sys
import time

from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.following import Followed, Follower
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import print_json_line
from omlx_cache_daemon.replies import Map
from omlx_cache_daemon.stores import add_store_options, the_one
from omlx_cache_daemon.watching import Lines, ask, until_interrupted

_LOOK_SECONDS = 0.25
_SALT_DIGITS = 8
_MODEL_CHARACTERS = 24
_COLUMNS = (
    ("TIME", 8),
    ("NUMBER", 7),
    ("MODEL", -_MODEL_CHARACTERS),
    ("SALT", -_SALT_DIGITS),
    ("TOKENS", 8),
    ("HOT", 8),
    ("COLD", 8),
    ("REMOTE", 8),
    ("COMPUTED", 8),
    ("OUT", 6),
    ("RESTORE", 9),
    ("HELD", 9),
    ("COMPUTE", 9),
    ("TOTAL", 9),
    ("REASON", -1),
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "monitor",
        help="show each request of a store as it ends",
        description="Prints a line for each request: tokens from memory, disk and "
        "other machines, tokens computed, "
        "where its time went (TOTAL counts from its arrival), and why no more was "
        "restored. Ctrl-C ends it.",
    )
    parser.add_argument("--begin", action="store_true", help="show each as it begins, too")
    add_store_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    client = the_one(args)
    _monitor(client, begin=args.begin, as_json=args.format == "json")
    return OK


def _monitor(client: Client, *, begin: bool, as_json: bool) -> None:
    follower, lines = Follower(), Lines(_COLUMNS)
    if not as_json:
        # So that it is seen to wait.
        lines.begin()

    def look() -> None:
        while True:
            followed = follower.take(ask(client, "requests", **follower.question()))
            _show(followed, lines, begin=begin, as_json=as_json)
            if not followed.more:
                return

    until_interrupted(look, _LOOK_SECONDS)


def _show(followed: Followed, lines: Lines, *, begin: bool, as_json: bool) -> None:
    if followed.unseen:
        requests = "1 request was" if followed.unseen == 1 else f"{followed.unseen} requests were"
        sys.stderr.write(f"omlx-cache: {requests} not seen\n")
    shown = sorted(
        [*followed.ended, *(followed.begun if begin else [])],
        key=lambda record: _ended_at(record),
    )
    for record in shown:
        if as_json:
            print_json_line(record)
        else:
            lines.print(_cells(record))


def _ended_at(record: Map) -> float:
    """Return when a request ended, or began if it has not."""
    asked, total = record.get("asked_at"), record.get("total_seconds")
    moment = asked if isinstance(asked, int | float) else 0.0
    return moment + total if isinstance(total, int | float) else moment


def _cells(record: Map) -> list[object]:
    restored, cold = record.get("restored_tokens"), record.get("cold_tokens")
    # A store of an earlier version says nothing of other machines, and has none.
    remote = record.get("remote_tokens", 0)
    known = isinstance(restored, int) and isinstance(cold, int) and isinstance(remote, int)
    hot = restored - cold - remote if known else None  # type: ignore[operator]
    return [
        time.strftime("%H:%M:%S", time.localtime(_ended_at(record))),
        record.get("number"),
        str(record.get("model") or "-").rpartition("/")[2][:_MODEL_CHARACTERS],
        str(record.get("salt") or "-").rpartition(":")[2][:_SALT_DIGITS],
        *map(_count, (record.get("prompt_tokens"), hot, cold, remote)),
        _count(_computed(record)),
        _count(record.get("generated_tokens")),
        *(_seconds(record.get(f"{name}_seconds")) for name in ("restore", "held", "compute")),
        _seconds(record.get("total_seconds")),
        record.get("reason"),
    ]


def _computed(record: Map) -> object:
    """Return the tokens that were computed: the rest, where a server told of none that it timed."""
    told, total = record.get("computed_tokens"), record.get("total_seconds")
    asked, restored = record.get("prompt_tokens"), record.get("restored_tokens")
    if told or total is None or not record.get("generated_tokens"):
        return told
    return asked - restored if isinstance(asked, int) and isinstance(restored, int) else told


def _count(value: object) -> str | None:
    return f"{value:,}" if isinstance(value, int) else None


def _seconds(value: object) -> str | None:
    return f"{value:.3f} s" if isinstance(value, int | float) else None
