"""The flags of `mlx_lm.server`, and the cache's settings as flags, without importing either."""

import argparse
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from omlx_cache.codecs.identity import CODEC_NAMES
from omlx_cache.settings.machine import names_file
from omlx_cache.settings.names import REMOVED
from omlx_cache.settings.sizes import parse_size
from omlx_cache_daemon.argument_types import positive_count, positive_number, size
from omlx_cache_storage.remote.address import names_password

SETTINGS = {
    "block_size": "tokens in a block, 16 to 4096 (default: 256)",
    "hot_bytes": "memory budget of the cache, of every model together, such as 8GiB (default: 1/8 "
    "of the memory)",
    "hot_cache_only": "keep nothing on the disk",
    "cold_dir": "directory of the cold tier (default: omlx-cache in the user's caches)",
    "cold_bytes": "disk budget, such as 40GiB (default: 1/4 of the free disk, at most 128GiB)",
    "min_free_bytes": "free disk space to leave",
    "write_policy": "through or lazy",
    "daily_write_bytes": "what may be written to the disk in 24 hours; 0: no limit",
    "queue_bytes": "pending bytes, at most",
    "commit_wait_seconds": "how long a sequence's last commit may wait for the writer",
    "worth_reading": "auto: compute where reading takes longer; off: always read",
    "prepare": "auto: compute what the next prompt begins with while there is no request; off",
    "durability": "none, fsync or full",
    "codec": f"how pages are encoded in both tiers: {', '.join(CODEC_NAMES)} (default: dense)",
    "cold_codec": "how pages are encoded on disk only: zstd, or one of those (default: dense)",
    "min_quantize_tokens": "shorter sequences stay dense",
    "snapshot_stride": "tokens between regular snapshots of recurrent state",
    "trace": "file to which requests are added, without text, for `simulate`",
    "socket": "control socket: auto, off or a path",
    "status": "answer /metrics and /status; to other machines with OMLX_CACHE_STATUS_TOKEN",
    "require": "end with an error if mlx-lm cannot use the cache, instead of running without it",
    "remote": "URL of a remote store, without a password",
    "remote_password": "file:PATH with the store's password",
    "remote_secret": "file:PATH with the secret that authenticates pages",
    "remote_encrypt": "encrypt pages before they leave this machine",
    "remote_writes": "which pages are sent to the store: all, reused, shared, off or service",
    "remote_lookup_seconds": "how long a request waits for the store's lookup",
    "remote_architecture": "which kinds of machines share pages: own, any or a name",
}

_METAVARS = {"block_size": "N", "cold_dir": "DIR", "codec": "NAME", "cold_codec": "NAME"}
SWITCHES = ("hot_cache_only", "status", "require", "remote_encrypt")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting of the cache; values are checked when the store opens."""
    group = parser.add_argument_group(
        "cache", "Each flag is also a variable: OMLX_CACHE_HOT_BYTES and so on. The flag wins."
    )
    for name, text in SETTINGS.items():
        flag = f"--{name.replace('_', '-')}"
        if name in SWITCHES:
            group.add_argument(flag, action="store_true", default=None, help=text)
        else:
            metavar = "SIZE" if name.endswith("_bytes") else _METAVARS.get(name, "VALUE")
            group.add_argument(flag, metavar=metavar, help=text, type=CHECKS.get(name, str))
    for name in REMOVED:
        # A command line that still has one starts: the store warns.
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, nargs="?", const="", help=argparse.SUPPRESS)


def _without_password(url: str) -> str:
    if names_password(url):
        # Others could read it in the list of processes; the message does not repeat the value.
        raise argparse.ArgumentTypeError(
            "a URL on the command line has no password: set OMLX_CACHE_REMOTE_PASSWORD, or "
            "--remote-password file:PATH"
        )
    return url


def _in_file(value: str) -> str:
    if not names_file(value):
        raise argparse.ArgumentTypeError("on the command line it is file:PATH: others read flags")
    return value


CHECKS: dict[str, Callable[[str], str]] = {
    "remote": _without_password,
    "remote_password": _in_file,
    "remote_secret": _in_file,
}


def given_settings(args: argparse.Namespace) -> dict[str, object]:
    given = {name: getattr(args, name) for name in (*SETTINGS, *REMOVED)}
    return {name: value for name, value in given.items() if value is not None}


def given_level(args: argparse.Namespace) -> str | None:
    is_given = any(word.startswith("--log-level=") for word in args.passed_on)
    return args.log_level if is_given else None


class _PassedOn(argparse.Action):
    """Stores a value of mlx-lm's, and its flag with the value in `passed_on`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        word = self.option_strings[0]
        if self.nargs != 0:
            # In one word, as a value may begin like a flag.
            word += f"={values if isinstance(values, str) else json.dumps(values)}"
        setattr(namespace, self.dest, True if self.nargs == 0 else values)
        namespace.passed_on = [*namespace.passed_on, word]


class Flag(NamedTuple):
    """A flag of `mlx_lm.server`, with its default; `kind` bool is a switch, without a value."""

    name: str
    about: str
    kind: Callable[[str], object] = str
    default: object = None
    metavar: str | None = None
    choices: tuple[str, ...] | None = None


_MODEL = (
    Flag("--model", "path or hub id of the MLX model"),
    Flag("--adapter-path", "adapter weights and configuration"),
    Flag("--draft-model", "a model for speculative decoding"),
    Flag("--trust-remote-code", "for the tokenizer", bool, False),
    Flag("--chat-template", "a chat template for the tokenizer", default=""),
    Flag("--use-default-chat-template", "when the tokenizer has none", bool, False),
    Flag(
        "--chat-template-args",
        "arguments of the template, such as enable_thinking",
        json.loads,
        "{}",
        "JSON",
    ),
    Flag("--prefill-step-size", "tokens of a prompt that are computed at once", int, 2048, "N"),
)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def _decimal_size(text: str) -> int:
    """Return a size as mlx-lm reads it, where M and G are decimal; else as this project does."""
    number = text.rstrip("MGBmgb")
    factor = {"M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}.get(text[len(number) :].upper())
    try:
        return int(float(number) * factor) if factor else parse_size(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_SERVER = (
    Flag("--host", "address to listen on", default="127.0.0.1"),
    Flag("--port", "port to listen on; 0: any free port", _port, 8080),
    Flag("--allowed-origins", "origins of browsers, separated by commas", default="*"),
    Flag(
        "--log-level",
        "level for every package's log; OMLX_CACHE_LOG_LEVEL sets omlx-cache's alone",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    ),
    Flag("--num-draft-tokens", "tokens that the draft model drafts at once", int, 3, "N"),
    Flag("--temp", "temperature of requests that name none", float, 0.0),
    Flag("--top-p", "top-p of requests that name none", float, 1.0),
    Flag("--top-k", "top-k of requests that name none; 0: all", int, 0),
    Flag("--min-p", "min-p of requests that name none", float, 0.0),
    Flag("--max-tokens", "tokens of an answer to a request that names no limit", int, 512, "N"),
    Flag("--decode-concurrency", "answers that are computed at once", int, 32, "N"),
    Flag("--prompt-concurrency", "prompts that are computed at once", int, 8, "N"),
    Flag(
        "--prompt-cache-size",
        "accepted, and without effect: --hot-bytes and --cold-bytes are the budgets",
        int,
        10,
        "N",
    ),
    Flag(
        "--prompt-cache-bytes",
        "memory for the cache and the running requests together",
        _decimal_size,
        metavar="SIZE",
    ),
    Flag("--kv-bits", "pack KV; disables batching", int, metavar="BITS"),
    Flag("--kv-group-size", "values that share a scale", int, 64, "N"),
    Flag("--quantized-kv-start", "tokens from which on KV is packed", int, 5000, "N"),
    Flag("--pipeline", "instead of tensor parallelism", bool, False),
)


def add_model(parser: argparse.ArgumentParser) -> None:
    _add(parser.add_argument_group("model"), _MODEL)
    parser.set_defaults(passed_on=[])


def add_server(parser: argparse.ArgumentParser) -> None:
    _add(parser.add_argument_group("server", "As mlx_lm.server has them."), _SERVER)


def _add(group: "argparse._ArgumentGroup", flags: Sequence[Flag]) -> None:
    for flag in flags:
        is_told = flag.default not in (None, False, "", "{}") and "effect" not in flag.about
        about = f"{flag.about} (default: %(default)s)" if is_told else flag.about
        how: dict[str, Any] = {"action": _PassedOn, "default": flag.default, "help": about}
        if flag.kind is bool:
            group.add_argument(flag.name, nargs=0, **how)
        else:
            how |= {"metavar": flag.metavar, "choices": flag.choices}
            group.add_argument(flag.name, type=flag.kind, **how)


def add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits", "A request beyond a limit is refused.")
    group.add_argument(
        "--max-body-bytes",
        type=_positive_size,
        default=32 << 20,
        metavar="SIZE",
        help="size of a request's body (default: 32MiB)",
    )
    group.add_argument(
        "--max-prompt-tokens",
        type=positive_count,
        metavar="N",
        help="length of a prompt (default: the context in the model's configuration)",
    )
    group.add_argument(
        "--drain-timeout",
        type=positive_number,
        default=30.0,
        metavar="SECONDS",
        help="how long requests may take to finish after the first signal; a running chunk has 30 "
        "more (default: %(default)s)",
    )


def add_help(parser: argparse.ArgumentParser, shown: Collection[str]) -> None:
    """Add --help, which shows some flags, and --help-all, which shows all of them."""
    parser.add_argument("-h", "--help", action=_Help, shown=shown, help="show the usual flags")
    parser.add_argument("--help-all", action=_Help, help="show all flags")


class _Help(argparse.Action):
    """Prints the help and leaves; with `shown` only of these flags."""

    def __init__(self, *, shown: Collection[str] = (), **options: Any) -> None:
        super().__init__(**options, nargs=0, default=argparse.SUPPRESS)
        self._shown = {*shown, *self.option_strings, "--help-all"} if shown else ()

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        for action in parser._actions:
            if self._shown and action.option_strings[0] not in self._shown:
                action.help = argparse.SUPPRESS
        for group in parser._action_groups:
            if all(action.help == argparse.SUPPRESS for action in group._group_actions):
                group.description = None
        parser.print_help()
        parser.exit()


def _positive_size(text: str) -> int:
    nbytes = size(text)
    if nbytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 1 byte")
    return nbytes
