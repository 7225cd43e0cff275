"""`omlx-cache size`: how much memory a model's KV takes, from its config.json."""

import argparse
import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from omlx_cache.codecs.identity import CODEC_NAMES, DEFAULT_MIN_QUANTIZE_TOKENS
from omlx_cache_daemon.errors import OK, CommandError
from omlx_cache_daemon.options import add_format_option, positive_count
from omlx_cache_daemon.render import print_json, quantity, table, uses_styles

if TYPE_CHECKING:
    from omlx_cache.tools.size import Estimate, GroupEstimate

_COUNT = re.compile(r"([0-9]+)([kK]?)")


def token_count(text: str) -> int:
    """Return a number of tokens; `32k` is 32,768."""
    match = _COUNT.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens, such as 4096 or 32k")
    return int(match[1]) * (1024 if match[2] else 1)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "size",
        help="compute a model's KV memory",
        description="Computes the KV memory of a model from its config.json: per token, per "
        "block, and for a context and a batch, by layer group. Reads no weights and asks no "
        "network. Exits with 1 when the model is not found or not understood.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a config.json, a folder that holds one, or an id in the local hub cache",
    )
    parser.add_argument(
        "--context",
        type=token_count,
        default=4096,
        metavar="TOKENS",
        help="tokens of each sequence (default: %(default)s)",
    )
    parser.add_argument("--batch", type=positive_count, default=1, metavar="N", help="sequences")
    parser.add_argument(
        "--block-size",
        type=positive_count,
        default=256,
        metavar="TOKENS",
        help="tokens of a block (default: %(default)s)",
    )
    parser.add_argument(
        "--codec", choices=(*CODEC_NAMES, "all"), default="dense", help="default: %(default)s"
    )
    parser.add_argument(
        "--reserve",
        type=token_count,
        default=0,
        metavar="TOKENS",
        help="room to grow behind the context, for what is to be generated",
    )
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    from omlx_cache.tools.size import SizingError, caches_of, estimate

    names = CODEC_NAMES if args.codec == "all" else (args.codec,)
    try:
        caches = caches_of(args.model)
    except SizingError as error:
        raise CommandError(str(error)) from None
    estimates = [
        estimate(
            caches,
            context=args.context,
            batch=args.batch,
            block_size=args.block_size,
            codec=name,
            reserve=args.reserve,
        )
        for name in names
    ]
    if args.format == "json":
        print_json(
            [as_json(e) for e in estimates] if args.codec == "all" else as_json(estimates[0])
        )
    elif args.codec == "all":
        sys.stdout.write(_comparison(estimates))
    else:
        sys.stdout.write(_report(estimates[0]))
    return OK


def as_json(result: "Estimate") -> dict[str, object]:
    """Return an estimate with its totals as plain data; all sizes are bytes."""
    totals = ("token", "block", "key", "value", "context", "reserved")
    return {
        **asdict(result),
        **{f"{name}_bytes": getattr(result, f"{name}_bytes") for name in totals},
    }


_HEADERS = ("GROUP", "CACHES", "PER TOKEN", "PER BLOCK", "TOKENS", "KEYS", "VALUES", "TOTAL")


def _report(result: "Estimate") -> str:
    """Return one codec's table: a row for each layer group, and the sum."""
    rows = [_row(group) for group in result.groups]
    caches = sum(group.layers for group in result.groups)
    sizes = (result.key_bytes, result.value_bytes, result.context_bytes)
    rows.append(
        ("all", str(caches), *_sizes(result.token_bytes, result.block_bytes), "-", *_sizes(*sizes))
    )
    grown = ""
    if result.reserve:
        grown = f"; with room for {result.reserve:,} more {_size(result.reserved_bytes)}"
    sequences = "1 sequence" if result.batch == 1 else f"{result.batch:,} sequences"
    head = (
        f"{result.model_type}, codec {result.codec}, {sequences} of {result.context:,} tokens, "
        f"blocks of {result.block_size:,}: {_size(result.context_bytes)}{grown}\n\n"
    )
    body = table(_HEADERS, rows, bold=uses_styles(sys.stdout))
    return head + body + "".join(f"\nNote: {note}" for note in _notes(result))


def _notes(result: "Estimate") -> list[str]:
    notes = [f"{note}\n" for note in result.notes]
    if result.codec != "dense" and result.context < DEFAULT_MIN_QUANTIZE_TOKENS:
        notes.append(
            f"sequences below {DEFAULT_MIN_QUANTIZE_TOKENS} tokens are not encoded by default\n"
        )
    return notes


def _row(group: "GroupEstimate") -> tuple[str, ...]:
    name = f"{group.kind} {group.window:,}" if group.window else group.kind
    if group.kind == "state":
        sizes = _sizes(group.block_bytes)
        total = _sizes(group.context_bytes)
        return (name, str(group.layers), "-", *sizes, "-", "-", "-", *total)
    return (
        name,
        str(group.layers),
        *_sizes(group.token_bytes, group.block_bytes),
        str(group.held_tokens),
        *_sizes(group.key_bytes, group.value_bytes, group.context_bytes),
    )


def _comparison(results: "list[Estimate]") -> str:
    rows = [
        (
            result.codec,
            *_sizes(result.token_bytes, result.block_bytes),
            *_sizes(result.context_bytes, result.reserved_bytes),
            f"{results[0].context_bytes / max(1, result.context_bytes):.2f}x",
        )
        for result in results
    ]
    headers = ("CODEC", "PER TOKEN", "PER BLOCK", "TOTAL", "WITH ROOM", "SAVING")
    body = table(headers, rows, bold=uses_styles(sys.stdout))
    return body + "".join(f"\nNote: {note}\n" for note in results[0].notes)


def _sizes(*counts: int) -> tuple[str, ...]:
    return tuple(map(_size, counts))


def _size(count: int) -> str:
    return quantity("bytes", count)
