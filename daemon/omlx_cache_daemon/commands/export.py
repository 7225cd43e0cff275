"""`omlx-cache export`: pages of a directory as one archive, for another machine."""

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

from omlx_cache.settings.sizes import counted
from omlx_cache_daemon.argument_types import complete_by
from omlx_cache_daemon.errors import FAILURE, OK, UsageError
from omlx_cache_daemon.places import add_source_options, known_names, used_directory
from omlx_cache_daemon.process import Progress
from omlx_cache_daemon.render import print_json, quantity, text, warn
from omlx_cache_daemon.targets import ABOUT, NAMES, add_kind, given_target


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "export",
        description="Writes the pages of a namespace, a model or a salt, the chain up to a block, "
        "or everything into one tar archive, which omlx-cache import reads. Stores may run "
        "meanwhile.",
        epilog="examples: omlx-cache export Qwen3-8B-4bit -o qwen.tar; "
        "omlx-cache export 3f9a02c1d4 -o - | ssh other omlx-cache import -",
    )
    about = ABOUT.format(key=", or how a block's key begins")
    complete_by(
        known_names,
        parser.add_argument(
            "target",
            nargs="?",
            metavar=f"{NAMES}|KEY",
            help=f"{about}. Everything unless it is given",
        ),
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the archive, or -")
    add_kind(parser, with_key=True)
    add_source_options(parser, "this directory, whoever uses it")


def run(args: argparse.Namespace) -> int:
    streams, as_json = args.output == "-", args.format == "json"
    if streams and (as_json or sys.stdout.isatty()):
        raise UsageError("-o - writes the archive on standard output: send that elsewhere, as text")
    if args.target is None and args.kind is not None:
        raise UsageError("say what to export; without a target it is everything")
    target = None if args.target is None else given_target(args.target, args.kind)
    directory = used_directory(args)
    # Only here: reading a directory brings NumPy, which a wrong command line does not wait for.
    from omlx_cache_daemon.archive import Packed, pack
    from omlx_cache_daemon.archiving import chosen_pages, new_file

    pages, manifest, is_whole = chosen_pages(directory, target)
    warn({"the chain of this block has a gap: nobody can restore it": not is_whole})
    done = Packed()
    with (
        nullcontext(sys.stdout.buffer) if streams else new_file(Path(args.output)) as to,
        Progress("exporting", len(pages), unit="pages", shown=not as_json) as progress,
    ):
        for done in pack(pages, manifest, to):
            progress.update(done["pages"] + done["gone"] + done["damaged"])
    if as_json:
        print_json(
            {
                "directory": str(directory),
                "file": args.output,
                "what": manifest.what,
                "namespaces": list(manifest.namespaces),
                "pages": done["pages"],
                "bytes": done["bytes"],
                "gone_pages": done["gone"],
                "damaged_pages": done["damaged"],
            }
        )
    else:
        where = "standard output" if streams else text(args.output)
        told = f"{counted(done['pages'], 'page')} ({quantity('bytes', done['bytes'])})"
        (sys.stderr if streams else sys.stdout).write(
            f"exported {told} of {text(directory)} to {where}\n"
        )
    warn(
        {
            f"{counted(done['gone'], 'page')} left the directory meanwhile": done["gone"],
            f"damaged or unreadable, and not in the archive: {counted(done['damaged'], 'page')}; "
            "omlx-cache doctor --all names each": done["damaged"],
        }
    )
    return FAILURE if done["damaged"] else OK
