"""Which namespaces a person means: by the beginning of a digest, by a model, or by a salt."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from omlx_cache.control.replies import NamespaceRow, last_name
from omlx_cache.identity.parts import salt_digest
from omlx_cache_daemon.errors import CommandError, UsageError
from omlx_cache_daemon.render import text
from omlx_cache_storage.documents import shortened_salt

_SHOWN_DIGITS = 16
_SHOWN_MATCHES = 5
_HEX = set("0123456789abcdef")


def given_target(given: str) -> tuple[str, str]:
    """Return what was given, and what may be shown of it; raises UsageError for nothing."""
    if given != "-":
        target, shown = given, text(given)
    else:
        target, shown = sys.stdin.readline().rstrip("\r\n"), "what was given"
    if not target:
        raise UsageError("an empty text names nothing")
    return target, shown


def meant(
    rows: Sequence[NamespaceRow], target: str, kind: str | None, shown: str
) -> list[NamespaceRow]:
    """Return the namespaces that a target names, those of one kind of name.

    A digest's beginning names one; a model and a salt name all of theirs. `shown` stands for the
    target in what is said of it: a salt may be a secret. Raises CommandError for none, and for
    what may be meant in two ways.
    """
    kinds = KINDS if kind is None else {kind: KINDS[kind]}
    found = {name: matches for name, of in kinds.items() if (matches := of(rows, target))}
    digests = {frozenset(row.namespace for row in matches) for matches in found.values()}
    if not found:
        raise CommandError(_unknown(kind, shown) + _there_are(rows))
    if len(digests) > 1:
        raise CommandError(
            f"{shown} may be a {' or a '.join(found)}: say which with --as {'|'.join(found)}"
        )
    matches = next(iter(found.values()))
    if len(matches) > 1 and set(found) == {"namespace"}:
        names = [row.namespace[:_SHOWN_DIGITS] for row in matches[:_SHOWN_MATCHES]]
        more = ", ..." if len(matches) > len(names) else ""
        raise CommandError(
            f"{len(matches)} namespaces begin with {shown}: {', '.join(names)}{more}"
        )
    return matches


def _unknown(kind: str | None, shown: str) -> str:
    if kind is None:
        return f"no model and no salt is {shown}, and no namespace begins with {shown}"
    return f"no {kind} begins with {shown}" if kind == "namespace" else f"no {kind} is {shown}"


def _there_are(rows: Sequence[NamespaceRow]) -> str:
    """Return the models that there are; what was typed may be a salt, and names no other one."""
    labels = sorted({text(row.label) for row in rows if row.label})
    if not labels:
        return "; there are no pages" if not rows else ""
    more = ", ..." if len(labels) > _SHOWN_MATCHES else ""
    return f"; there are pages of {', '.join(labels[:_SHOWN_MATCHES])}{more}"


def _by_digest(rows: Sequence[NamespaceRow], target: str) -> list[NamespaceRow]:
    lowered = target.lower()
    if not lowered or set(lowered) - _HEX:
        return []
    return [row for row in rows if row.namespace.startswith(lowered)]


def _by_model(rows: Sequence[NamespaceRow], target: str) -> list[NamespaceRow]:
    """A model is named by its label in full, by a hub id's last part, or by its directory."""
    path = Path(target).expanduser()
    names = {target, path.resolve().name} if path.is_dir() else {target}
    return [row for row in rows if names & ({row.label, last_name(row.label)} - {""})]


def _by_salt(rows: Sequence[NamespaceRow], target: str) -> list[NamespaceRow]:
    """A salt was given to the cache as this text, or as its bytes."""
    raw = target.encode("utf-8", "surrogateescape")
    digests = {shortened_salt(salt_digest(salt)) for salt in (target, raw)}
    return [row for row in rows if row.salt in digests]


KINDS: dict[str, Callable[[Sequence[NamespaceRow], str], list[NamespaceRow]]] = {
    "namespace": _by_digest,
    "model": _by_model,
    "salt": _by_salt,
}
KEY = "key"
PIN_KINDS = (*KINDS, KEY)
"""A block is named by how its key begins."""
