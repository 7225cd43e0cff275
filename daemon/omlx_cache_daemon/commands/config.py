"""`omlx-cache config`: every setting, its value and where the value came from."""

import argparse
import sys

from omlx_cache.control.paths import search_places
from omlx_cache_daemon.errors import OK
from omlx_cache_daemon.options import add_format_option
from omlx_cache_daemon.render import print_json, table, uses_styles


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("config", help="show each setting and where it came from")
    add_format_option(parser)


def run(args: argparse.Namespace) -> int:
    from omlx_cache.settings import CacheSettings
    from omlx_cache.settings.origin import plain

    settings = CacheSettings()
    sources = settings.sources()
    notes = settings.notes()
    places = [str(place) for place in search_places()]
    if args.format == "json":
        values = {
            name: {"value": plain(source.value), "kind": source.kind, "origin": source.origin}
            for name, source in sources.items()
        }
        print_json({"settings": values, "runtime_dirs": places, "notes": notes})
        return OK
    rows = [(source.name, source.rendered, source.origin) for source in sources.values()]
    styled = uses_styles(sys.stdout)
    sys.stdout.write(table(("SETTING", "VALUE", "ORIGIN"), rows, bold=styled))
    sys.stdout.write(f"\nControl sockets are looked for in {', '.join(places)}\n")
    sys.stdout.writelines(f"Note: {note}\n" for note in notes)
    return OK
