"""`omlx-cache quota`: the budget of a cold directory, for all processes that use it."""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from omlx_cache.identity.salt import salt_digest
from omlx_cache.settings.sizes import SIZE_FORMS, SMALLEST_COLD_BYTES, parse_size
from omlx_cache_daemon.errors import OK, UsageError
from omlx_cache_daemon.options import add_format_option, hex_prefix
from omlx_cache_daemon.render import facts, print_json, quantity, table, text, uses_styles
from omlx_cache_daemon.replies import Map, as_maps
from omlx_cache_daemon.source import add_source_options, used_directory
from omlx_cache_storage.documents import shortened_salt

EACH = "*"
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%", re.ASCII)
_SHOWN_DIGITS = 16
_NAMED = 8
_HEADERS = ("SHARE", "NAME", "USED", "CEILING")
_SET_BY = {
    "free space": "a store, from free space",
    "store": "a store, as its cold_bytes",
    "quota": "omlx-cache quota",
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "quota",
        help="show or change what a cold directory may take, in all and by share",
        description="Shows the budget of a cold directory, which all processes share that use it, "
        "and what is used of it; or changes it, and the shares that some pages may have at most. "
        "Running stores go by it at once, without a restart.",
        epilog="examples: omlx-cache quota 40GiB; omlx-cache quota --each-salt 10%%; "
        "omlx-cache quota --model qwen3-8b 20GiB; omlx-cache quota --each-salt none",
    )
    parser.add_argument(
        "amount",
        nargs="?",
        metavar="SIZE",
        help="the budget (40GiB), which stays until it is changed here; auto: what the stores' "
        "cold_bytes say, or free space. Of a share: a size, a part of the budget (25%%), or none",
    )
    share = parser.add_mutually_exclusive_group()
    share.add_argument(
        "--salt",
        metavar="TEXT",
        help="the share of this salt's pages; - reads it from standard input, where no list of "
        "processes shows it",
    )
    share.add_argument("--no-salt", action="store_true", help="that of all pages without a salt")
    share.add_argument("--each-salt", action="store_true", help="that of each salt by itself")
    share.add_argument("--model", metavar="LABEL", help="that of a model, as ls names it")
    share.add_argument("--each-model", action="store_true", help="that of each model by itself")
    share.add_argument("--namespace", type=hex_prefix, metavar="DIGEST", help="that of a namespace")
    share.add_argument(
        "--each-namespace", action="store_true", help="that of each namespace by itself"
    )
    add_source_options(parser, "this directory, whoever uses it")
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    asked = _asked(args)
    directory = used_directory(args)
    # Reading the directory needs NumPy; a wrong command line does not.
    from omlx_cache_daemon.quotas import change, described

    if asked is not None:
        change(directory, *asked, make=args.cold_dir is None)
    state = described(directory)
    if args.format == "json":
        print_json(state)
    else:
        _print(state)
    if asked is not None:
        _note(asked, directory, state)
    nbytes, used = state["bytes"], state["used_bytes"]
    if isinstance(nbytes, int) and isinstance(used, int) and used > nbytes:
        sys.stderr.write(
            "omlx-cache: the directory holds more: a running store evicts it within seconds, else "
            "the next one that opens\n"
        )
    return OK


def _note(asked: "_Asked", directory: Path, state: Map) -> None:
    """Say on standard error what a change does not do yet."""
    from omlx_cache_daemon.quotas import known_names

    if asked.selected is None:
        if asked.nbytes is None:
            sys.stderr.write(
                f"omlx-cache: {quantity('bytes', state['bytes'])} counts until a store opens the "
                "directory that is alone there\n"
            )
        return
    kind, name = asked.selected
    goes = asked.nbytes is None and asked.fraction is None
    if goes or name in (EACH, salt_digest(None)) or kind == "namespace":
        return
    known = known_names(directory, kind)
    if name in known:
        return
    # What was typed for a salt may be a secret, and digests of others help nobody.
    named = "this salt"
    others = ""
    if kind == "model":
        named = text(name)
        others = f"; there are those of {', '.join(map(text, known[:_NAMED]))}" if known else ""
    sys.stderr.write(f"omlx-cache: there are no pages of {named} yet{others}\n")


class _Asked(NamedTuple):
    """A change: of the share of a kind and name or, without those, of the budget itself; to bytes,
    to a part of the budget, or to what it is without anybody's word."""

    selected: tuple[str, str] | None
    nbytes: int | None = None
    fraction: float | None = None


def _asked(args: argparse.Namespace) -> _Asked | None:
    """Return the change that the command line asks for; None: none."""
    selected = _selected(args)
    if args.amount is None:
        if selected is not None:
            raise UsageError("say how much: a size such as 4GiB, a part such as 25%, or none")
        return None
    asked = _Asked(selected)
    amount = args.amount.strip().lower()
    if amount == ("auto" if selected is None else "none"):
        return asked
    percent = None if selected is None else _PERCENT.fullmatch(amount)
    if percent is not None:
        if float(percent[1]) > 100:
            raise UsageError(f"{args.amount!r} is more than the whole budget")
        return asked._replace(fraction=float(percent[1]) / 100)
    if selected is None and _PERCENT.fullmatch(amount):
        raise UsageError(
            f"{args.amount!r}: only a share is a part of a budget; give {SIZE_FORMS}, or auto"
        )
    try:
        nbytes = parse_size(args.amount)
    except ValueError as error:
        others = ", or auto" if selected is None else ", a part such as 25%, or none"
        raise UsageError(f"{args.amount!r}: {error}; give {SIZE_FORMS}{others}") from None
    if selected is None and 0 < nbytes < SMALLEST_COLD_BYTES:
        # Everything would go at once, and most who write `40` mean another unit.
        raise UsageError(
            f"a budget of {quantity('bytes', nbytes)} has no room for a page; give a unit, as in "
            "40GiB, or 0 for a disk that keeps nothing"
        )
    return asked._replace(nbytes=nbytes)


def _selected(args: argparse.Namespace) -> tuple[str, str] | None:
    """Return the kind and name of the share that is meant, None for the budget itself."""
    for kind in ("salt", "model", "namespace"):
        if getattr(args, f"each_{kind}"):
            return kind, EACH
        if getattr(args, kind) is not None:
            name = getattr(args, kind)
            if kind == "model" and not name:
                raise UsageError("an empty text names no model")
            return kind, _digest(name) if kind == "salt" else name
    return ("salt", salt_digest(None)) if args.no_salt else None


def _digest(given: str) -> str:
    """Return a salt's digest; raises UsageError for nothing."""
    salt = sys.stdin.readline().rstrip("\r\n") if given == "-" else given
    if not salt:
        raise UsageError("an empty text names no salt; --no-salt means pages without one")
    return salt_digest(salt)


def _print(state: Map) -> None:
    nbytes, set_by = state["bytes"], state["set_by"]
    budget = "none yet: the first store that opens the directory sets it"
    if set_by is not None:
        budget = f"{quantity('bytes', nbytes)}, set by {_SET_BY.get(str(set_by), set_by)}"
    used = quantity("bytes", state["used_bytes"])
    sys.stdout.write(facts([("directory", state["directory"]), ("budget", budget), ("used", used)]))
    if state["shares"]:
        sys.stdout.write("\n" + table(_HEADERS, _rows(state), bold=uses_styles(sys.stdout)))


def _rows(state: Map) -> Iterator[tuple[object, ...]]:
    """Yield a row for each share of each one, and for each that has a name or pages."""
    for share in as_maps(state["shares"]):
        if share["name"] == EACH:
            yield f"each {share['kind']}", "", "-", _amount(share)
    for pool in as_maps(state["pools"]):
        used, most = pool["used_bytes"], pool["limit_bytes"]
        name = _shown(str(pool["kind"]), str(pool["name"]))
        yield pool["kind"], name, quantity("bytes", used), quantity("bytes", most)


def _amount(share: Map) -> str:
    part = share["fraction"]
    return f"{100 * part:g} %" if isinstance(part, float) else quantity("bytes", share["bytes"])


def _shown(kind: str, name: str) -> str:
    if kind == "salt":
        return shortened_salt(name) or "none"
    return name[:_SHOWN_DIGITS] if kind == "namespace" else name
