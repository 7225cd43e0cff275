"""`omlx-cache size`: how much memory a model's KV takes, from its config.json."""

import argparse
import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from omlx_cache.codecs.identity import CODEC_NAMES, DEFAULT_MIN_QUANTIZE_TOKENS
from omlx_cache.settings.sizes import counted, format_size
from omlx_cache_daemon.argument_types import positive_count
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.render import print_answer, table, uses_styles

if TYPE_CHECKING:
    from omlx_cache.tools.size import Estimate, GroupEstimate

_COUNT = re.compile(r"([0-9]+)([kK]?)")
_TOTALS = ("token", "block", "key", "value", "context", "reserved")
_HEADERS = ("GROUP", "CACHES", "PER TOKEN", "PER BLOCK", "TOKENS", "KEYS", "VALUES", "TOTAL")
_CODEC_HEADERS = ("CODEC", "PER TOKEN", "PER BLOCK", "TOTAL", "WITH ROOM", "SAVING")


def token_count(text: str) -> int:
    """Return a number of tokens; `32k` is 32,768."""
    match = _COUNT.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens, such as 4096 or 32k")
    return int(match[1]) * (1024 if match[2] else 1)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "size",
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


def run(args: argparse.Namespace) -> int:
    from omlx_cache.tools.size import caches_of, estimate

    caches = caches_of(args.model)
    is_one = args.codec != "all"
    estimates = [
        estimate(
            caches,
            codec=name,
            context=args.context,
            batch=args.batch,
            block_size=args.block_size,
            reserve=args.reserve,
        )
        for name in ((args.codec,) if is_one else CODEC_NAMES)
    ]
    # With totals; all sizes are bytes.
    documents = [
        {**asdict(one), **{f"{name}_bytes": one.total(f"{name}_bytes") for name in _TOTALS}}
        for one in estimates
    ]
    report = _report(estimates[0]) if is_one else _comparison(estimates)
    print_answer(
        args.format == "json",
        documents[0] if is_one else documents,
        report + "".join(f"\nNote: {note}\n" for note in caches.notes),
    )
    return OK


def _report(result: "Estimate") -> str:
    token, block, key, value, context, reserved = (
        format_size(result.total(f"{name}_bytes")) for name in _TOTALS
    )
    rows = [_row(group) for group in result.groups]
    rows.append(("all", str(result.total("layers")), token, block, "-", key, value, context))
    grown = f"; with room for {result.reserve:,} more {reserved}" if result.reserve else ""
    head = (
        f"{result.model_type}, codec {result.codec}, {counted(result.batch, 'sequence')} of "
        f"{counted(result.context, 'token')}, "
        f"blocks of {result.block_size:,}: {context}{grown}\n\n"
    )
    told = table(_HEADERS, rows, bold=uses_styles(sys.stdout))
    if result.codec != "dense" and result.context < DEFAULT_MIN_QUANTIZE_TOKENS:
        least = DEFAULT_MIN_QUANTIZE_TOKENS
        told += f"\nNote: sequences below {least} tokens are not encoded by default\n"
    return head + told


def _row(group: "GroupEstimate") -> tuple[str, ...]:
    is_state = group.kind == "state"
    return (
        f"{group.kind} {group.window:,}" if group.window else group.kind,
        str(group.layers),
        "-" if is_state else format_size(group.token_bytes),
        format_size(group.block_bytes),
        "-" if is_state else str(group.held_tokens),
        "-" if is_state else format_size(group.key_bytes),
        "-" if is_state else format_size(group.value_bytes),
        format_size(group.context_bytes),
    )


def _comparison(results: "list[Estimate]") -> str:
    dense = results[0].total("context_bytes")
    sizes = ("token_bytes", "block_bytes", "context_bytes", "reserved_bytes")
    rows = [
        (
            result.codec,
            *(format_size(result.total(name)) for name in sizes),
            f"{dense / max(1, result.total('context_bytes')):.2f}x",
        )
        for result in results
    ]
    return table(_CODEC_HEADERS, rows, bold=uses_styles(sys.stdout))
