"""The budget of a cold directory as people and programs see it: plain values, read from files."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

from omlx_cache_daemon.cold import reading, root_of
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.replies import Map
from omlx_cache_storage.cold.budget import EACH, Budget, Share, ShareKind, read_budget
from omlx_cache_storage.cold.catalog import namespace_directories, read_namespace
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.pools import Pool, pools_of
from omlx_cache_storage.cold.quota import change_budget, with_share, without_share
from omlx_cache_storage.cold.removal import entries, root_bytes
from omlx_cache_storage.cold.root import DirectoryGone
from omlx_cache_storage.documents import label
from omlx_cache_storage.format.names import BUDGET_FILE, ENTRY_BYTES, LEDGER_FILE
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.listed import ListedPage, list_pages
from omlx_cache_storage.pruning import Footprint


def described(cold_dir: Path) -> Map:
    """Return a directory's budget and what is used of it and of each share. Opens no page; raises
    NobodyThere without a directory."""
    with reading(cold_dir):
        budget = read_budget(cold_dir)
        pages = list_pages((), entries(cold_dir))
        used = Footprint(root_bytes(cold_dir))
        for page in pages:
            used.add(page)
        return {
            "directory": str(cold_dir),
            "bytes": None if budget is None else budget.nbytes,
            "set_by": None if budget is None else budget.set_by,
            "used_bytes": used.nbytes,
            "shares": [] if budget is None else list(map(_share, budget.shares)),
            "pools": [] if budget is None else _pools(cold_dir, budget, pages),
        }


def change(
    cold_dir: Path,
    selected: tuple[str, str] | None,
    nbytes: int | None,
    fraction: float | None,
    *,
    make: bool,
) -> None:
    """Change the share of a kind and name or, with `selected` None, the budget itself; with neither
    bytes nor a fraction the share goes, and the budget is left to the stores.

    `make`: a directory that no store has used yet is made. Raises CommandError, BudgetRefused.
    """
    if make and nbytes is not None and selected is None:
        try:
            root_of(cold_dir).have(deleted=False)
        except DirectoryGone as gone:
            raise CommandError(str(gone.strerror)) from gone
    with reading(cold_dir):
        _refuse_other_things(cold_dir)
        change_budget(cold_dir, _changing(cold_dir, selected, nbytes, fraction))


def known_names(cold_dir: Path, kind: str) -> list[str]:
    """Return the models, or the digests of the salts, that have pages in a directory."""
    with reading(cold_dir):
        fs = FileSystem()
        documents = [read_namespace(cold_dir, of) for of, _ in namespace_directories(cold_dir, fs)]
    if kind == "model":
        return sorted({label(document) for document in documents} - {""})
    return sorted({salt for document in documents if isinstance(salt := document.get("salt"), str)})


def _refuse_other_things(cold_dir: Path) -> None:
    """Raise CommandError for a directory that is somebody's, and no cold directory."""
    fs = FileSystem()
    if any(True for _ in namespace_directories(cold_dir, fs)):
        return
    names = {entry.name for entry in fs.scan(cold_dir)}
    if names & {BUDGET_FILE, LEDGER_FILE} or all(name.startswith(".") for name in names):
        return
    raise CommandError(f"{cold_dir} holds other things, and is no cold directory")


def _changing(
    cold_dir: Path, selected: tuple[str, str] | None, nbytes: int | None, fraction: float | None
) -> Callable[[Budget | None], Budget]:
    """Return what becomes of a budget."""
    if selected is None:
        return lambda known: _resized(known, nbytes)
    kind, name = cast(ShareKind, selected[0]), selected[1]
    if kind == "namespace" and name != EACH:
        name = _find_digest(cold_dir, name)
    if nbytes is None and fraction is None:
        return lambda known: _without(known, kind, name)
    share = Share(kind, name, nbytes, fraction)
    return lambda known: with_share(_known(known), share)


def _resized(known: Budget | None, nbytes: int | None) -> Budget:
    if nbytes is None:
        return dataclasses.replace(_known(known), set_by="free space")
    return Budget(nbytes, "quota", () if known is None else known.shares)


def _without(known: Budget | None, kind: ShareKind, name: str) -> Budget:
    budget = _known(known)
    if budget.share(kind, name) is None:
        raise CommandError("there is no such share; `omlx-cache quota` shows those that are")
    return without_share(budget, kind, name)


def _known(budget: Budget | None) -> Budget:
    if budget is None:
        raise CommandError(
            "the directory has no budget yet: give it one first, such as omlx-cache quota 20GiB"
        )
    return budget


def _find_digest(cold_dir: Path, prefix: str) -> str:
    """Return the digest of the one namespace that begins so, of those in a directory and those that
    have a share. A whole one need not be there. Raises CommandError."""
    budget = read_budget(cold_dir)
    known = {digest.hex() for digest, _ in namespace_directories(cold_dir, FileSystem())}
    if budget is not None:
        known |= {s.name for s in budget.shares if s.kind == "namespace" and s.name != EACH}
    found = sorted(digest for digest in known if digest.startswith(prefix))
    if len(prefix) == 64 or len(found) == 1:
        return found[0] if found else prefix
    several = f"{len(found)} namespaces begin" if found else "no namespace begins"
    raise CommandError(f"{several} with {prefix} in {cold_dir}")


def _share(share: Share) -> Map:
    return {
        "kind": share.kind,
        "name": share.name,
        "bytes": share.nbytes,
        "fraction": share.fraction,
    }


def _pools(cold_dir: Path, budget: Budget, pages: list[ListedPage]) -> list[Map]:
    """Return what is used of each share with a name, and by each one of a kind that has pages."""
    limits = {
        Pool(share.kind, share.name): share.ceiling(budget.nbytes)
        for share in budget.shares
        if share.name != EACH
    }
    used: Counter[Pool] = Counter()
    for namespace, nbytes in _bytes_of(pages).items():
        document = read_namespace(cold_dir, namespace)
        for pool, limit_bytes in pools_of(budget, namespace, document).items():
            limits[pool] = limit_bytes
            used[pool] += nbytes
    return [
        {"kind": pool.kind, "name": pool.name, "used_bytes": used[pool], "limit_bytes": most}
        for pool, most in sorted(limits.items())
    ]


def _bytes_of(pages: list[ListedPage]) -> Counter[BlockKey]:
    taken: Counter[BlockKey] = Counter()
    for page in pages:
        taken[page.namespace] += page.nbytes + ENTRY_BYTES
    return taken
