"""The flags of `mlx_lm.server`, and the cache's settings as flags, without importing either."""

import argparse
import json
from collections.abc import Callable

from omlx_cache.settings.machine import names_file
from omlx_cache.settings.names import REMOVED
from omlx_cache.settings.sizes import parse_size
from omlx_cache_daemon.options import positive_count, positive_seconds
from omlx_cache_storage.remote.address import names_password

SETTINGS = {
    "block_size": "tokens in a block",
    "hot_bytes": "memory budget of the cache, of every model together",
    "hot_cache_only": "keep nothing on the disk",
    "cold_dir": "directory of the cold tier",
    "cold_bytes": "disk budget",
    "min_free_bytes": "free disk space to leave",
    "write_policy": "through or lazy",
    "daily_write_bytes": "what may be written to the disk in 24 hours; 0: no limit",
    "queue_bytes": "bytes that may wait for the writer",
    "commit_wait_seconds": "how long a last commit may wait for the disk",
    "worth_reading": "auto computes what takes longer to read; off reads always",
    "durability": "none, fsync or full",
    "codec": "how pages are encoded in both tiers",
    "cold_codec": "how pages are encoded on disk only",
    "min_quantize_tokens": "shorter sequences stay dense",
    "snapshot_stride": "tokens between regular snapshots of recurrent state",
    "trace": "file to which requests are added, without text, for `simulate`",
    "socket": "control socket: auto, off or a path",
    "status": "answer /metrics and /status; to other machines with OMLX_CACHE_STATUS_TOKEN",
    "remote": "store that machines share: a URL without a password",
    "remote_password": "file:PATH with its password",
    "remote_secret": "file:PATH with the secret that authenticates pages",
    "remote_encrypt": "encrypt pages before they leave this machine",
    "remote_writes": "all, reused, shared, off or service: which pages are sent there",
    "remote_lookup_seconds": "how long a request waits for it to say what it has",
    "remote_architecture": "own, any or a name: machines of which kind share",
}

SWITCHES = ("hot_cache_only", "status", "remote_encrypt")


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
            group.add_argument(flag, metavar="VALUE", help=text, type=_CHECKS.get(name, str))
    for name in REMOVED:
        # A command line that still has one starts: the store warns.
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, nargs="?", const="", help=argparse.SUPPRESS)


def _without_password(url: str) -> str:
    if names_password(url):
        # Others could read it in the list of processes; what was given is not said again.
        raise argparse.ArgumentTypeError(
            "a URL on the command line has no password: set OMLX_CACHE_REMOTE_PASSWORD, or "
            "--remote-password file:PATH"
        )
    return url


def _in_file(value: str) -> str:
    if not names_file(value):
        raise argparse.ArgumentTypeError("on the command line it is file:PATH: others read flags")
    return value


_CHECKS: dict[str, Callable[[str], str]] = {
    "remote": _without_password,
    "remote_password": _in_file,
    "remote_secret": _in_file,
}


def given_settings(args: argparse.Namespace) -> dict[str, object]:
    """Return the settings that were given as flags, removed ones too."""
    given = {name: getattr(args, name) for name in (*SETTINGS, *REMOVED)}
    return {name: value for name, value in given.items() if value is not None}


def given_level(args: argparse.Namespace) -> str | None:
    """Return the --log-level that was given, None for the default."""
    return args.log_level if getattr(args, "log_level_given", False) else None


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which model is loaded and how."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", help="path or hub id of the MLX model")
    group.add_argument("--adapter-path", help="adapter weights and configuration")
    group.add_argument("--trust-remote-code", action="store_true", help="for the tokenizer")
    group.add_argument("--chat-template", default="", help="a chat template for the tokenizer")
    group.add_argument(
        "--use-default-chat-template", action="store_true", help="when the tokenizer has none"
    )
    group.add_argument(
        "--chat-template-args",
        type=json.loads,
        default="{}",
        metavar="JSON",
        help="arguments of the template, such as enable_thinking",
    )
    group.add_argument(
        "--prefill-step-size",
        type=int,
        default=2048,
        metavar="N",
        help="tokens of a prompt that are computed at once (default: %(default)s)",
    )


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the rest of `mlx_lm.server`'s flags, with its defaults."""
    group = parser.add_argument_group("server", "As mlx_lm.server has them.")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    group.add_argument(
        "--port", type=_port, default=8080, help="0 for any free port (default: %(default)s)"
    )
    group.add_argument(
        "--allowed-origins",
        type=lambda text: text.split(","),
        default="*",
        help="of browsers, with commas between (default: %(default)s)",
    )
    group.add_argument(
        "--log-level",
        action=_Given,
        default="INFO",
        choices=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"],
        help="of everything that is logged; by default OMLX_CACHE_LOG_LEVEL, else %(default)s",
    )
    group.add_argument("--draft-model", help="a model for speculative decoding")
    group.add_argument(
        "--num-draft-tokens",
        type=int,
        default=3,
        metavar="N",
        help="tokens that it drafts at once (default: %(default)s)",
    )
    group.add_argument(
        "--temp",
        type=float,
        default=0.0,
        help="temperature of requests that name none (default: %(default)s)",
    )
    group.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        help="top-p of requests that name none (default: %(default)s)",
    )
    group.add_argument(
        "--top-k",
        type=int,
        default=0,
        help="top-k of requests that name none; 0: all (default: %(default)s)",
    )
    group.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        help="min-p of requests that name none (default: %(default)s)",
    )
    group.add_argument(
        "--max-tokens",
        type=int,
        default=512,
        metavar="N",
        help="tokens of an answer to a request that names no limit (default: %(default)s)",
    )
    group.add_argument(
        "--decode-concurrency",
        type=int,
        default=32,
        metavar="N",
        help="answers that are computed at once (default: %(default)s)",
    )
    group.add_argument(
        "--prompt-concurrency",
        type=int,
        default=8,
        metavar="N",
        help="prompts that are computed at once (default: %(default)s)",
    )
    group.add_argument(
        "--prompt-cache-size",
        type=int,
        default=10,
        metavar="N",
        help="accepted, and without effect: --hot-bytes and --cold-bytes are the budgets",
    )
    group.add_argument(
        "--prompt-cache-bytes",
        type=_size,
        metavar="SIZE",
        help="memory for the prompt cache and the requests under way together",
    )
    group.add_argument("--kv-bits", type=int, metavar="BITS", help="pack KV; disables batching")
    group.add_argument(
        "--kv-group-size",
        type=int,
        default=64,
        metavar="N",
        help="values that share a scale (default: %(default)s)",
    )
    group.add_argument(
        "--quantized-kv-start",
        type=int,
        default=5000,
        metavar="N",
        help="tokens from which on KV is packed (default: %(default)s)",
    )
    group.add_argument("--pipeline", action="store_true", help="instead of tensor parallelism")


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add what requests may take of this machine."""
    group = parser.add_argument_group("limits", "What a request may take; beyond it is refused.")
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
        "--max-requests",
        type=positive_count,
        default=512,
        metavar="N",
        help="requests that are held at once (default: %(default)s)",
    )
    group.add_argument(
        "--receive-timeout",
        type=positive_seconds,
        default=30.0,
        metavar="SECONDS",
        help="how long a client may pause while it sends; ten times that for all of a request "
        "(default: %(default)s)",
    )


class _Given(argparse.Action):
    """Stores a value, and in `log_level_given` that it was on the command line."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, f"{self.dest}_given", True)


def _port(text: str) -> int:
    """Return a TCP port; argparse reports anything else."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def _positive_size(text: str) -> int:
    """Return a size of at least one byte; argparse reports anything else."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 1 byte")
    return size


def _size(text: str) -> int:
    """Return a size as mlx-lm reads it, where M and G are decimal; else as this project does."""
    number = text.rstrip("MGBmgb")
    factor = {"M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}.get(text[len(number) :].upper())
    try:
        return int(float(number) * factor) if factor else parse_size(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
