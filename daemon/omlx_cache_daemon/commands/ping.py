"""`omlx-cache ping`: is a store there?"""

import argparse
import time

from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import duration, print_json, text
from omlx_cache_daemon.replies import as_map
from omlx_cache_daemon.stores import add_store_options, the_one
from omlx_cache_daemon.titles import title


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "ping",
        help="ask whether a store is there",
        description="Asks one running store for an answer, and says which it is and how long that "
        "took. Exit code 69: nobody answers.",
    )
    add_store_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    client = the_one(args)
    start = time.perf_counter()
    reply = as_map(client.call("ping"))
    elapsed = time.perf_counter() - start
    if args.format == "json":
        print_json({**reply, "answered_s": elapsed})
        return OK
    version = text(reply.get("version"))
    print(
        f"{title(reply)} in process {text(reply.get('pid'))}, omlx-cache {version}, "
        f"up {duration(_seconds(reply.get('uptime_s')))}: answered in {elapsed * 1000:.1f} ms"
    )
    return OK


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
