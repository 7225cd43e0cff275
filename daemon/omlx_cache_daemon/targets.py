"""The targets that a person names: a namespace by its digest's beginning, a model, a salt, or a
block by its key's beginning. Also the namespaces that match, and the ones that no process restores
any more."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from omlx_cache.control.replies import SHOWN_MATCHES, NamespaceRow, last_name, several
from omlx_cache.identity.namespace import installed, salt_digest
from omlx_cache_daemon.errors import CommandError, UsageError
from omlx_cache_daemon.render import text
from omlx_cache_storage.documents import MLX, Versions, shortened_salt

KEY: Final = "key"
NAMES: Final = "NAMESPACE|MODEL|SALT"
ABOUT: Final = (
    "the beginning of a namespace's digest, a model's name or directory, or a salt{key}; see ls. "
    "- reads the name from standard input, so that no list of processes shows it"
)


class Target(NamedTuple):
    """A name, and of which kind it is, if that was said; `shown` stands for it in messages: a salt
    may be a secret."""

    name: str
    kind: str | None
    shown: str

    @property
    def digits(self) -> str:
        """The name in lower case if it can be the beginning of a digest or key, else nothing."""
        lowered = self.name.lower()
        return "" if set(lowered) - set("0123456789abcdef") else lowered

    def salts(self) -> tuple[str, bytes]:
        return self.name, self.name.encode("utf-8", "surrogateescape")


def add_kind(parser: argparse.ArgumentParser, *, with_key: bool) -> None:
    kinds = (*KINDS, KEY) if with_key else tuple(KINDS)
    parser.add_argument("--as", dest="kind", choices=kinds, help="what kind of name it is")


def given_target(given: str, kind: str | None) -> Target:
    """Raises UsageError for none."""
    target = Target(given, kind, text(given))
    if given == "-":
        target = Target(sys.stdin.readline().rstrip("\r\n"), kind, "what was given")
    if not target.name:
        raise UsageError("an empty text names nothing")
    return target


def meant(rows: Sequence[NamespaceRow], target: Target) -> tuple[str, list[NamespaceRow]]:
    """Return the kind of a name, and the namespaces of that name.

    A digest's beginning names one; a model and a salt name all of theirs. Raises CommandError for
    none, and for what may be meant in two ways.
    """
    kinds = KINDS if target.kind is None else {target.kind: KINDS[target.kind]}
    found = {name: matches for name, of in kinds.items() if (matches := of(rows, target))}
    digests = {frozenset(row.namespace for row in matches) for matches in found.values()}
    if not found:
        raise CommandError(_unknown(target) + _there_are(rows))
    if len(digests) > 1:
        raise CommandError(
            f"{target.shown} may be a {' or a '.join(found)}: say which with --as {'|'.join(found)}"
        )
    kind, matches = next(iter(found.items()))
    if len(matches) > 1 and set(found) == {"namespace"}:
        raise CommandError(several([row.namespace for row in matches], target.shown))
    return kind, matches


def _unknown(target: Target) -> str:
    match target.kind:
        case None:
            return (
                f"no model and no salt is {target.shown}, and no namespace begins with "
                f"{target.shown}"
            )
        case "namespace":
            return f"no namespace begins with {target.shown}"
    return f"no {target.kind} is {target.shown}"


def _there_are(rows: Sequence[NamespaceRow]) -> str:
    """The typed name may be a salt, so the text names no other salt."""
    labels = sorted({text(row.label) for row in rows if row.label})
    if not labels:
        return "; there are no pages" if not rows else ""
    more = ", ..." if len(labels) > SHOWN_MATCHES else ""
    return f"; there are pages of {', '.join(labels[:SHOWN_MATCHES])}{more}"


def _by_digest(rows: Sequence[NamespaceRow], target: Target) -> list[NamespaceRow]:
    digits = target.digits
    return [row for row in rows if digits and row.namespace.startswith(digits)]


def _by_model(rows: Sequence[NamespaceRow], target: Target) -> list[NamespaceRow]:
    """A model is named by its label in full, by a hub id's last part, or by its directory."""
    path = Path(target.name).expanduser()
    names = {target.name, path.resolve().name} if path.is_dir() else {target.name}
    return [row for row in rows if names & ({row.label, last_name(row.label)} - {""})]


def _by_salt(rows: Sequence[NamespaceRow], target: Target) -> list[NamespaceRow]:
    """A salt was given to the cache as this text, or as its bytes."""
    digests = {shortened_salt(salt_digest(salt)) for salt in target.salts()}
    return [row for row in rows if row.salt in digests]


KINDS: Final[Mapping[str, Callable[[Sequence[NamespaceRow], Target], list[NamespaceRow]]]] = {
    "namespace": _by_digest,
    "model": _by_model,
    "salt": _by_salt,
}


def current_versions(of_stores: Iterable[Versions]) -> list[Versions]:
    here = installed()
    return [*([here] if here.get(MLX) else ()), *filter(None, of_stores)]


def with_staleness(
    rows: Sequence[NamespaceRow], of_stores: Iterable[Versions]
) -> list[NamespaceRow]:
    """Return namespaces, each with `stale`: None when its versions or those in use are unknown."""
    current = current_versions(of_stores)
    return [
        replace(row, stale=row.versions not in current if row.versions and current else None)
        for row in rows
    ]
