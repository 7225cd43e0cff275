"""`omlx-cache monitor`: one line for each request of a store, as it ends."""

import argparse
import sys
import time

from omlx_cache.requests.explanation import RequestRecord
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.following import Followed, Follower
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import print_json_line
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
    shown = [*followed.ended, *(followed.begun if begin else [])]
    for record in sorted(shown, key=_ended_at):
        if as_json:
            print_json_line(record.to_dict())
        else:
            lines.print(_cells(record))


def _ended_at(record: RequestRecord) -> float:
    """Return when a request ended, or began if it has not."""
    return record.asked_at + (record.total_seconds or 0.0)


def _cells(record: RequestRecord) -> list[object]:
    cold, remote = record.cold_tokens, record.remote_tokens
    hot = record.restored_tokens - cold - remote
    return [
        time.strftime("%H:%M:%S", time.localtime(_ended_at(record))),
        record.number,
        (record.model or "-").rpartition("/")[2][:_MODEL_CHARACTERS],
        (record.salt or "-").rpartition(":")[2][:_SALT_DIGITS],
        *(f"{count:,}" for count in (record.prompt_tokens, hot, cold, remote, _computed(record))),
        f"{record.generated_tokens:,}",
        *(f"{took:.3f} s" for took in (record.restore_seconds, record.held_seconds)),
        f"{record.compute_seconds:.3f} s",
        None if record.total_seconds is None else f"{record.total_seconds:.3f} s",
        record.reason,
    ]


def _computed(record: RequestRecord) -> int:
    """Return the tokens that were computed: the rest, where a server told of none that it timed."""
    told = record.computed_tokens
    if told or record.total_seconds is None or not record.generated_tokens:
        return told
    return record.prompt_tokens - record.restored_tokens
