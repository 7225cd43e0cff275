"""`omlx-cache why`: why no more of a request's prompt was restored."""

import argparse
import sys

from omlx_cache.reasons import described
from omlx_cache.requests.explanation import clock
from omlx_cache_daemon.errors import OK, CommandError
from omlx_cache_daemon.options import add_format_option, positive_count
from omlx_cache_daemon.render import print_json, text
from omlx_cache_daemon.replies import Map, as_map, as_maps, count_of
from omlx_cache_daemon.stores import add_store_options, the_one


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "why",
        help="show why no more of a prompt was restored",
        description="Shows what was restored of a request's prompt and why it was not more: of the "
        "last one, unless a number is given (a server's log and `monitor` have it). Prompts are "
        "compared within one model and salt only, and their tokens are in the memory of the "
        "server's process alone.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("request", type=positive_count, nargs="?", metavar="REQUEST_NUMBER")
    which.add_argument("--last", type=positive_count, metavar="N", help="the last N requests")
    add_store_options(parser)
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    client = the_one(args)
    reply = as_map(client.call("why", last=args.last or 1, number=args.request))
    requests = as_maps(reply.get("requests"))
    if not requests and args.request is not None:
        raise CommandError(f"request {args.request} is not known, or not any more")
    if args.format == "json":
        print_json(reply)
    else:
        sys.stdout.write(render(reply))
    return OK


def render(reply: Map) -> str:
    """Return the requests in words."""
    requests = as_maps(reply.get("requests"))
    if not requests:
        return "no request yet\n"
    return "\n".join(map(_request, requests))


def _request(request: Map) -> str:
    model, salt = request.get("model"), request.get("salt")
    facts = [clock(request.get("asked_at")), *(text(part) for part in (model,) if part)]
    # Enough of a salt's digest to tell tenants apart.
    facts += [f"salt {text(salt)[:16]}"] if salt else []
    shown = f"request {count_of(request, 'number')} ({', '.join(facts)})\n"
    shown += f"  {text(request.get('words') or 'its look-up is under way')}\n"
    helps = described(str(as_map(request.get("explanation") or {}).get("reason"))).remedy
    return shown + (f"  what helps: {helps}\n" if helps else "")
