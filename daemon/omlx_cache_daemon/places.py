"""Where a command finds pages, and deletes them: in running stores, or in a directory's files."""

import argparse
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omlx_cache.control.errors import ControlError
from omlx_cache.control.replies import SHOWN_DIGITS, NamespaceRow, PageDetails, PageRow
from omlx_cache_daemon.client import Client, Map, as_answer, as_map, count_of
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.render import text, warn
from omlx_cache_daemon.stores import (
    add_store_options,
    passed_over,
    running,
    the_one,
)
from omlx_cache_storage.errors import CacheError

if TYPE_CHECKING:
    from omlx_cache_daemon.offline_files import Files

EVERY = 2**31 - 1
COUNTS = ("pages", "bytes")


def add_source_options(
    parser: argparse.ArgumentParser, cold_dir_help: str = "read this directory and ask no store"
) -> None:
    add_store_options(parser)
    parser.add_argument("--cold-dir", type=Path, metavar="DIR", help=cold_dir_help)


def _said_directory(args: argparse.Namespace) -> Path | None:
    """Return the directory to read, or None when a store is to be asked: one that --pid or --socket
    chose is asked in any case. Says on standard error that no store is there to be asked. Raises
    OSError when --cold-dir names nothing."""
    if args.cold_dir is not None:
        return existing(args.cold_dir)
    if args.pid is not None or args.socket is not None or running():
        return None
    from omlx_cache_daemon.offline_files import configured_directory

    directory = configured_directory()
    unseen = "".join(f" (not looked in {place})" for place in passed_over())
    warn({f"no store is running{unseen}; using {text(directory)}": True})
    return directory


def used_directory(args: argparse.Namespace) -> Path:
    """Return the directory that is meant, as `_said_directory`, or that of the running store; it
    need not be there. Raises CommandError for a store without one."""
    directory = _said_directory(args)
    if directory is None:
        told = the_one(args, on_disk=True).process().cold_dir
        if told is None:
            raise CommandError("the store keeps nothing on a disk; --cold-dir names a directory")
        directory = Path(os.path.realpath(told))
    return directory


def existing(directory: Path) -> Path:
    """Return the path if it exists, on its own disk. Raises CommandError, and OSError for another
    error."""
    # Only here: reading a directory needs NumPy, and asking a store does not.
    from omlx_cache_daemon.offline_files import root_of

    if why := root_of(directory).unmounted():
        raise CommandError(why)
    try:
        directory.stat()
    except FileNotFoundError as error:
        raise CommandError(f"{directory}: {error.strerror}; make it, or mount its disk") from error
    return directory


def known_names(prefix: str, args: argparse.Namespace) -> list[str]:
    """For a shell: models and namespaces. Empty where the directory cannot be read."""
    from omlx_cache_daemon.offline_files import Files, configured_directory

    with contextlib.suppress(CommandError, CacheError):
        rows = Files(args.cold_dir or configured_directory()).namespaces(EVERY)
        return [*{row.label for row in rows}, *(row.namespace[:SHOWN_DIGITS] for row in rows)]
    return []


def known_pages(prefix: str, args: argparse.Namespace) -> list[str]:
    """For a shell: `known_names`, and behind `NAMESPACE/` the keys of its pages."""
    from omlx_cache_daemon.offline_files import Files, configured_directory

    digits, slash, _ = prefix.partition("/")
    if not slash:
        return known_names(prefix, args)
    with contextlib.suppress(CommandError, CacheError):
        files = Files(args.cold_dir or configured_directory())
        found = (one for one in files.entries() if one.namespace.hex().startswith(digits))
        keys = [f"{digits}/{entry.page.key.hex()[:SHOWN_DIGITS]}" for entry in found]
        # A hub's name of a model has a slash, too.
        return keys or known_names(prefix, args)
    return []


@dataclass(frozen=True, slots=True)
class StorePages:
    """The pages of a running store."""

    client: Client

    def namespaces(self, limit: int) -> Sequence[NamespaceRow]:
        return as_answer(tuple[NamespaceRow, ...], self.client.call("ls", limit=limit))

    def pages(self, prefix: str, limit: int) -> Sequence[PageRow]:
        return as_answer(tuple[PageRow, ...], self.client.call("ls", limit=limit, namespace=prefix))

    def details(self, key_prefix: str, limit: int) -> Sequence[PageDetails]:
        return as_answer(
            tuple[PageDetails, ...],
            self.client.call("inspect", key_prefix=key_prefix, limit=limit),
        )


def place_of(args: argparse.Namespace) -> "StorePages | Files":
    """Return the running store that is meant, or the directory that was named, or is configured
    when no store runs."""
    directory = _said_directory(args)
    return StorePages(the_one(args, on_disk=True)) if directory is None else _files(directory)


@dataclass(frozen=True, slots=True)
class Users:
    """A directory and the running stores that use it, maybe none; its path is None for a store
    without a disk."""

    directory: Path | None
    clients: Sequence[Client]

    @classmethod
    def of(cls, args: argparse.Namespace) -> "Users":
        """Raises CommandError when a store does not say where its pages are: it may use the
        directory."""
        directory = _said_directory(args)
        if directory is not None:
            return cls(directory, _users(directory, args.timeout))
        client = the_one(args, on_disk=True)
        told = client.process().cold_dir
        if told is None:
            return cls(None, [client])
        others = (one for one in _users(Path(told), args.timeout) if one.path != client.path)
        return cls(Path(told), [client, *others])

    def __str__(self) -> str:
        return "memory" if self.directory is None else text(self.directory)

    def namespaces(self) -> Sequence[NamespaceRow]:
        """Of a namespace that several stores have, return the row of the store that has most of
        it."""
        if not self.clients:
            return self.files().namespaces(EVERY)
        found: dict[str, NamespaceRow] = {}
        for row in (row for one in self.clients for row in StorePages(one).namespaces(EVERY)):
            if row.pages > found.setdefault(row.namespace, row).pages:
                found[row.namespace] = row
        return list(found.values())

    def clear(self, digest: str, timeout: float) -> int:
        """Delete a namespace; return the pages of the store that had most of it, with the pages
        that no store knew of. Raises CommandError, and drops nothing, where no file can go."""
        if self.directory and self.directory.is_dir() and not os.access(self.directory, os.W_OK):
            raise CommandError(f"{self}: read-only, or not yours to write: nothing was deleted")
        # A store waits for the page that it is writing; the other half of the time is for the
        # deletion.
        asked: Map = {"namespace": digest, "timeout": timeout / 2}
        replies = [as_map(client.call("clear", **asked)) for client in self.clients]
        deleted = max((count_of(reply, "pages") for reply in replies), default=0)
        return deleted + (self.files().clear(digest) if self.has_files else 0)

    def prune(self, asked: Map, timeout: float, *, dry_run: bool) -> Map:
        """Choose pages by the arguments of `Pruning`, and delete them unless `dry_run`; return how
        many, as the store says that has most of them."""
        if not self.clients:
            return self.files().prune(asked, dry_run=dry_run)
        asked_of_stores: Map = {**asked, "dry_run": dry_run, "timeout": timeout / 2}
        # Of several stores, each records its uses, so that all of them know the uses of each.
        for _ in range(2 if dry_run and len(self.clients) > 1 else 1):
            replies = [as_map(client.call("prune", **asked_of_stores)) for client in self.clients]
        most = max(replies, key=lambda reply: count_of(reply, "pages"))
        if dry_run or not self.has_files:
            return most
        # Pages that no running store knew of: a store of another version sees only its own. Not by
        # age, since it does not say which pages it used.
        rest = self.files().prune({**asked, "before_ns": None}, dry_run=False)
        return {**most, **{name: count_of(most, name) + count_of(rest, name) for name in COUNTS}}

    @property
    def has_files(self) -> bool:
        """True when there may be files of which no store knows."""
        return self.directory is not None and (not self.clients or self.directory.is_dir())

    def files(self) -> "Files":
        assert self.directory is not None
        return _files(self.directory)


def _files(directory: Path) -> "Files":
    # Only here: reading a directory needs NumPy, and asking a store does not.
    from omlx_cache_daemon.offline_files import Files

    return Files(directory)


def _users(directory: Path, timeout: float) -> list[Client]:
    found = []
    for client in (store.within(timeout) for store in running()):
        try:
            used = client.process().cold_dir
        except (CommandError, ControlError) as error:
            raise CommandError(f"{directory} may be in use: {error}") from error
        if used is not None and os.path.realpath(used) == os.path.realpath(directory):
            found.append(client)
    return found
