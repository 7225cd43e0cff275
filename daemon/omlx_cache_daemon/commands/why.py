"""`omlx-cache why`: why no more of a request's prompt was restored."""

import argparse

from omlx_cache.control.replies import ExplainedRequest, WhyReply, last_name
from omlx_cache.reasons import CORRUPT, described
from omlx_cache.requests.explanation import DELETED, clock
from omlx_cache_daemon.argument_types import positive_count
from omlx_cache_daemon.client import as_answer
from omlx_cache_daemon.errors import OK, CommandError, UsageError
from omlx_cache_daemon.render import folded, print_answer, text
from omlx_cache_daemon.stores import StoreQuestion, add_store_options, chosen, say_who_is_silent

_REMEDIES = {
    DELETED: "nothing to do: `omlx-cache rm` or a program deleted it; it is stored again",
    "damaged": described(CORRUPT).remedy,
}
"""What helps where the detail says more than the reason."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "why",
        description="Shows how much of a request's prompt was restored, and why no more. Without "
        "a number it is the last request, of several stores the latest of all; a server's log and "
        "`omlx-cache log` have the numbers. Only prompts of one model and salt are compared. Their "
        "tokens are only in the memory of the server's process.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("request", type=positive_count, nargs="?", metavar="REQUEST_NUMBER")
    which.add_argument("--last", type=positive_count, metavar="N", help="the last N requests")
    add_store_options(parser)


def run(args: argparse.Namespace) -> int:
    replies = StoreQuestion(
        lambda store: as_answer(
            WhyReply, store.call("why", last=args.last or 1, number=args.request)
        ),
        args.timeout,
    ).ask(chosen(args))
    say_who_is_silent(replies)
    known = [one for one in replies if one.answer and one.answer.requests]
    if len(known) > 1 and args.request is not None:
        lines = [f"  omlx-cache why {args.request} --pid {one.store.pid}" for one in known]
        raise UsageError("\n".join(["several stores have a request of this number:", *lines]))
    answers = [one.answer for one in known or replies if one.answer]
    reply = max(answers, key=lambda one: one.requests[-1].asked_at if one.requests else 0.0)
    if not reply.requests and args.request is not None:
        raise CommandError(
            f"there is no request {args.request} among the latest that the process remembers; "
            "omlx-cache log shows their numbers"
        )
    shown = "\n".join(map(_shown, reply.requests)) or "no request yet\n"
    print_answer(args.format == "json", reply, folded(shown))
    return OK


def _shown(request: ExplainedRequest) -> str:
    # Enough of a salt's digest to tell tenants apart.
    salt = f"salt {request.salt[:16]}" if request.salt else ""
    facts = filter(None, [clock(request.asked_at), last_name(request.model), salt])
    shown = f"request {request.number} ({text(', '.join(facts))})\n"
    shown += f"  {text(request.words or 'its lookup is in flight')}\n"
    told, helps = request.explanation, ""
    if told is not None and told.reason is not None:
        helps = _REMEDIES.get(told.detail, described(told.reason).remedy)
    return shown + (f"  what helps: {helps}\n" if helps else "")
