"""What a cold directory holds, read from its files, in the shapes that a running store answers."""

import stat
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from os import environ
from pathlib import Path

from omlx_cache.settings.errors import ConfigError
from omlx_cache.settings.places import COLD_DIR_VARIABLE, cold_dir_from_environment
from omlx_cache_daemon.errors import CommandError, NobodyThere
from omlx_cache_storage.cold.catalog import CatalogEntry, NamespaceInfo, describe, namespaces, scan
from omlx_cache_storage.errors import PageError
from omlx_cache_storage.recency import age_seconds

_COLD = ["cold"]


def configured_directory() -> Path:
    """Return the cold directory that a store would use; raises ConfigError for a bad variable."""
    system = "Darwin" if sys.platform == "darwin" else "Linux"
    try:
        return cold_dir_from_environment(system, environ, Path.home())
    except ValueError as error:
        raise ConfigError(
            f"{COLD_DIR_VARIABLE}: got {environ[COLD_DIR_VARIABLE]!r} ({error}); "
            "allowed: a directory, or auto"
        ) from None


def list_namespaces(cold_dir: Path, limit: int) -> list[dict[str, object]]:
    """Return one map for each namespace. Opens no page. Raises NobodyThere without a directory."""
    pages: defaultdict[str, list[CatalogEntry]] = defaultdict(list)
    for entry in _scan(cold_dir):
        pages[entry.namespace].append(entry)
    found = sorted(_namespaces(cold_dir), key=lambda info: info.digest)
    return [_namespace(info, pages[info.digest]) for info in found[:limit]]


def list_pages(cold_dir: Path, prefix: str, limit: int) -> list[dict[str, object]]:
    """Return one map for each page of the namespace that begins with `prefix`, oldest token first.

    Raises CommandError when no namespace, or more than one, begins so.
    """
    matches = [n.digest for n in _namespaces(cold_dir) if n.digest.startswith(prefix)]
    if len(matches) != 1:
        what = "no namespace begins" if not matches else f"{len(matches)} namespaces begin"
        raise CommandError(f"{what} with {prefix} in {cold_dir}")
    entries = [entry for entry in _scan(cold_dir) if entry.namespace == matches[0]]
    entries.sort(key=lambda entry: (entry.position, entry.group, entry.key))
    now_ns = time.time_ns()
    return [_page(entry, now_ns) for entry in entries[:limit]]


def inspect_pages(cold_dir: Path, prefix: str, limit: int) -> list[dict[str, object]]:
    """Return what the files of the pages say whose keys begin with `prefix`.

    A page that cannot be read is in the list with an `error`. Reads headers, no payload.
    """
    entries = (entry for entry in _scan(cold_dir) if entry.key.startswith(prefix))
    return [_details(entry) for entry in islice(entries, limit)]


def _scan(cold_dir: Path) -> Iterator[CatalogEntry]:
    with _reading(cold_dir):
        yield from scan(cold_dir)


def _namespaces(cold_dir: Path) -> list[NamespaceInfo]:
    with _reading(cold_dir):
        return namespaces(cold_dir)


@contextmanager
def _reading(cold_dir: Path) -> Iterator[None]:
    try:
        # Not `is_dir`, which answers False for some errors and raises others.
        if not stat.S_ISDIR(cold_dir.stat().st_mode):
            raise CommandError(f"{cold_dir} is not a directory")
        yield
    except FileNotFoundError as error:
        raise NobodyThere(
            f"no store is running, and there is no cold directory at {cold_dir}"
        ) from error
    except OSError as error:
        raise CommandError(f"{cold_dir}: {error.strerror}") from error


def _namespace(info: NamespaceInfo, pages: list[CatalogEntry]) -> dict[str, object]:
    tokens: defaultdict[str, int] = defaultdict(int)
    for page in pages:
        tokens[page.group] += page.held
    return {
        "namespace": info.digest,
        "label": label(info.document),
        "pages": len(pages),
        "bytes": sum(page.nbytes for page in pages),
        # Layer groups cover the same tokens, so the best stocked one counts, not their sum.
        "tokens": max(tokens.values(), default=0),
        "groups": sorted(tokens),
        "tiers": _COLD,
    }


def label(document: Mapping[str, object]) -> str:
    """Return a model's name for people, or the start of its fingerprint, from a document."""
    return str(document.get("model_id") or str(document.get("model", ""))[:12])


def _page(entry: CatalogEntry, now_ns: int) -> dict[str, object]:
    return {
        "key": entry.key,
        "group": entry.group,
        "position": entry.position,
        "tokens": entry.held,
        "bytes": entry.nbytes,
        "tiers": _COLD,
        "age_s": age_seconds(int(entry.mtime * 1e9), now_ns),
    }


def _details(entry: CatalogEntry) -> dict[str, object]:
    try:
        return {**describe(entry.path), "tiers": _COLD}
    except PageError as error:
        return {
            "key": entry.key,
            "namespace": entry.namespace,
            "path": str(entry.path),
            "tiers": _COLD,
            "error": f"{error.reason}: {error}",
        }
