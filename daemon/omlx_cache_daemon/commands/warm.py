"""`omlx-cache warm`: prompts prefilled ahead of their use, so that a server restores them."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omlx_cache.settings.names import ConfigError
from omlx_cache.settings.sizes import counted
from omlx_cache_daemon.argument_types import positive_count
from omlx_cache_daemon.errors import FAILURE, OK, CommandError, NobodyThere, UsageError
from omlx_cache_daemon.process import Progress, show_logs
from omlx_cache_daemon.render import print_answer, quantity, text, warn
from omlx_cache_daemon.server_flags import add_model, add_settings, given_settings
from omlx_cache_daemon.warming import (
    Prompt,
    Server,
    WarmReport,
    find_servers,
    read_prompts,
    serving,
    warm_through,
)

if TYPE_CHECKING:
    from omlx_cache.settings import CacheSettings


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "warm",
        description="Prefills prompts and writes their pages to the cold tier. A FILE with the "
        "suffix .jsonl has a chat or a text on each line; another FILE is one text. A second run "
        "computes at most one token of each prompt. If a server with this model and directory "
        "runs, it does the work with its own template and flags. Give the model and cache flags "
        "that it was started with, or none if it is the only server.",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    add_model(parser)
    parser.add_argument("--pid", type=positive_count, help="the server in this process")
    parser.add_argument(
        "--beside", action="store_true", help="load the model here, even if a server is running"
    )
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    level = show_logs(None, "warning")
    prompts = read_prompts(args.file)
    if not prompts:
        raise CommandError(f"{args.file} has no prompts")
    given = given_settings(args)
    wanted = _wanted({**level, **given})
    server = _running(args, wanted)
    if server is not None:
        report = _warm(args, server, prompts)
    elif args.model:
        with serving(args.passed_on, given) as pid:
            (own,) = (one for one in find_servers(args, wanted)[0] if one.client.pid == pid)
            report = replace(_warm(args, own, prompts), server=None)
    else:
        raise UsageError("--model is missing, and no server is running that has one")
    document = {name: getattr(report, name) for name in report.__slots__}
    print_answer(args.format == "json", document, _told(report))
    warn({"not everything could be written": not report.durable})
    return OK if report.durable else FAILURE


def _warm(args: argparse.Namespace, server: Server, prompts: Sequence[Prompt]) -> WarmReport:
    with Progress("warming", len(prompts), unit="prompts", shown=args.format != "json") as bar:
        return warm_through(server, prompts, args.chat_template_args, bar.update)


def _wanted(given: dict[str, object]) -> "CacheSettings":
    from omlx_cache.settings import CacheSettings

    known = CacheSettings(**given)
    if known.hot_cache_only:
        raise ConfigError("hot_cache_only leaves nothing behind when this command ends")
    return known


def _running(args: argparse.Namespace, wanted: "CacheSettings") -> Server | None:
    """Return the running server that restores the warmed pages, None to work without one; names
    other users of the directory on standard error. Raises UsageError when several might be
    meant."""
    servers, others = find_servers(args, wanted)
    if args.pid is not None:
        servers = [server for server in servers if server.client.pid == args.pid]
        if not servers:
            told = "".join(f"; {other}" for other in others)
            raise NobodyThere(f"process {args.pid} has no server with this model{told}")
    if len(servers) > 1 and not (args.model or args.beside):
        named = "; ".join(f"{server.title}, pid {server.client.pid}" for server in servers)
        raise UsageError(
            f"{len(servers)} servers are running ({named}): --model or --pid says which, and "
            "--beside loads the model here"
        )
    chosen = [] if args.beside else servers[:1]
    beside = [f"{server.title} uses this directory" for server in servers[len(chosen) :]]
    # Through a server, servers of other models are no concern.
    beside += [] if chosen else others
    warn(
        {
            f"{text(other)}: what it can use of these pages it finds at its next lookup": True
            for other in beside
        }
    )
    return chosen[0] if chosen else None


def _told(report: WarmReport) -> str:
    through = f" by {report.server}" if report.server else ""
    return (
        f"{counted(report.prompts, 'prompt')}, {report.warm_prompts:,} already in the cache: "
        f"{counted(report.computed_tokens, 'token')} computed{through}, "
        f"{quantity('bytes', report.stored_bytes)} written to {report.cold_dir or 'memory'}\n"
    )
