"""Where pages are deleted, and whether a person agrees: what `rm` and `prune` have in common."""

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from omlx_cache.control.errors import ControlError
from omlx_cache.control.replies import NamespaceRow
from omlx_cache_daemon.client import Client
from omlx_cache_daemon.errors import CommandError, NobodyThere, UsageError
from omlx_cache_daemon.render import lines, text
from omlx_cache_daemon.replies import as_answer, as_map, directory_of
from omlx_cache_daemon.source import add_source_options, offline_directory
from omlx_cache_daemon.stores import running, the_one

_TIMEOUT_SECONDS = 60.0
EVERY_NAMESPACE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Place:
    """The running stores that use a directory, or a directory that no store uses.

    `directory` is None for a store without a disk.
    """

    directory: Path | None
    clients: tuple[Client, ...]

    def __str__(self) -> str:
        return "memory" if self.directory is None else text(self.directory)

    def namespaces(self) -> list[NamespaceRow]:
        """Return a row for each namespace that a store, or else the directory, has: of those that
        several have, the row of the one that has most of it."""
        if self.clients:
            found: dict[str, NamespaceRow] = {}
            for client in self.clients:
                reply = client.call("ls", limit=EVERY_NAMESPACE)
                for row in as_answer(tuple[NamespaceRow, ...], reply):
                    known = found.setdefault(row.namespace, row)
                    if row.pages > known.pages:
                        found[row.namespace] = row
            return list(found.values())
        # Reading the directory needs NumPy; asking a store does not.
        from omlx_cache_daemon.cold import cold_namespaces

        return cold_namespaces(self.on_disk(), EVERY_NAMESPACE)

    def on_disk(self) -> Path:
        """Return the directory of a place that is not memory alone."""
        assert self.directory is not None
        return self.directory


def add_deletion_options(parser: argparse.ArgumentParser) -> None:
    """Add --yes, --dry-run and what chooses the place."""
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="say what would be deleted")
    add_source_options(parser, "delete in this directory and ask no store")
    parser.set_defaults(timeout=_TIMEOUT_SECONDS)


def chosen_place(args: argparse.Namespace) -> Place:
    """Return where to delete.

    Raises CommandError when a store does not say where its pages are: it may use the directory.
    """
    directory = offline_directory(args)
    if directory is not None:
        return Place(directory, _users(directory, args.timeout))
    client = the_one(args, on_disk=True)
    told = directory_of(as_map(client.call("ps")))
    if told is None:
        return Place(None, (client,))
    used = Path(told)
    others = (other for other in _users(used, args.timeout) if other.path != client.path)
    return Place(used, (client, *others))


def confirmed(what: str) -> bool:
    """Ask whether something shall be deleted; raises UsageError when nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked, since this is no terminal: give --yes or --dry-run")
    sys.stderr.write(f"Delete {lines(what)}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    sys.stderr.write("omlx-cache: nothing was deleted\n")
    return False


def _users(directory: Path, timeout: float) -> tuple[Client, ...]:
    """Return the running stores that use a directory."""
    found = []
    for store in running():
        client = store.client(timeout)
        try:
            used = directory_of(as_map(client.call("ps")))
        except (NobodyThere, ControlError) as error:
            raise CommandError(f"{directory} may be in use: {error}") from error
        if used is not None and os.path.realpath(used) == os.path.realpath(directory):
            found.append(client)
    return tuple(found)
