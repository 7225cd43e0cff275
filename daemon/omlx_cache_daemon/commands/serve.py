"""`omlx-cache serve`: `omlx-cache run mlx_lm.server`, with the cache's settings as flags."""

import argparse
import logging
import os
from collections.abc import Iterable, Iterator

from omlx_cache.settings.machine import IN_FILE, names_file
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.process import end_process, show_logs
from omlx_cache_daemon.render import warn
from omlx_cache_daemon.server_flags import (
    add_help,
    add_limits,
    add_model,
    add_server,
    add_settings,
    given_level,
    given_settings,
)

_log = logging.getLogger(__name__)

_MODELS = ("--model", "--adapter-path", "--draft-model")
_FILES = ("--cold-dir", "--trace", "--socket", "--remote-password", "--remote-secret")
"""Flags with a path, which need not be there."""
USUAL = (
    "--model",
    "--host",
    "--port",
    "--log-level",
    "--max-tokens",
    "--max-prompt-tokens",
    "--hot-bytes",
    "--cold-dir",
    "--cold-bytes",
    "--status",
    "--keep-reasoning",
    "--at-login",
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "serve",
        description="Runs mlx-lm's server with this cache in place of its own. After the first "
        "Ctrl-C, SIGTERM or SIGHUP it finishes requests and writes pending pages. A second signal "
        "leaves 5 seconds for that, and a third ends the process.",
        add_help=False,
    )
    add_help(parser, USUAL)
    add_model(parser)
    add_server(parser)
    add_limits(parser)
    add_settings(parser)
    parser.add_argument(
        "--keep-reasoning",
        action="store_true",
        help="give the chat template the reasoning of earlier answers, which clients drop",
    )
    parser.add_argument(
        "--at-login",
        action=argparse.BooleanOptionalAction,
        help="run with these flags now and after each login, by systemd or launchd; "
        "--no-at-login ends that",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="also show how far each prompt is computed"
    )


def run(args: argparse.Namespace) -> int:
    if args.at_login is not None:
        return _change_login(args)
    level = show_logs(given_level(args), args.log_level)
    from omlx_cache.integrations.launching import launch
    from omlx_cache.settings import CacheSettings

    given = given_settings(args)
    options = {
        "body_bytes": args.max_body_bytes,
        "prompt_tokens": args.max_prompt_tokens,
        "drain_seconds": args.drain_timeout,
        "verbose": args.verbose,
        "keep_reasoning": args.keep_reasoning,
        "given": (
            *given,
            *(("log_level",) if given_level(args) else ()),
            *(("keep_reasoning",) if args.keep_reasoning else ()),
        ),
    }
    settings = CacheSettings(**{**level, **given})
    if args.model:
        # Before MLX is imported, which takes seconds on a cold disk.
        _log.info("loading %s ...", args.model)
    end_process(launch("mlx_lm.server", args.passed_on, settings, has_status=True, **options))


def _change_login(args: argparse.Namespace) -> int:
    """Have this command line start at login, or no server; raises the error of a wrong setting."""
    from omlx_cache.settings import CacheSettings
    from omlx_cache_daemon.service.units import end_at_login, start_at_login

    if not args.at_login:
        print(end_at_login())
        return OK
    # A wrong setting is refused now, not at the next login.
    CacheSettings(**given_settings(args))
    print(start_at_login([*_absolute(word for word in args.words if word != "--at-login")]))
    unseen = sorted(name for name in os.environ if name.startswith(("OMLX_CACHE_", "HF_")))
    warn({f"variables of this shell do not reach it: {', '.join(unseen)}": unseen})
    return OK


def _absolute(words: Iterable[str]) -> Iterator[str]:
    """Yield the words of a command line with absolute paths: it starts in another directory."""
    flag = ""
    for word in words:
        before, value = "", word
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            before = flag + equals
        if names_file(value):
            before, value = before + IN_FILE, value[len(IN_FILE) :]
        path = os.path.abspath(os.path.expanduser(value))
        is_path = flag in _FILES and value.lower() not in ("auto", "off")
        if value and (is_path or (flag in _MODELS and os.path.exists(path))):
            value = path
        yield before + value
