"""A level of the tree of cached prefixes as a plain document; its text only where that is asked."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from omlx_cache.requests.log import Decoder, decoded
from omlx_cache.status.prefixes import PrefixTree, Root
from omlx_cache.status.runs import TIERS, Run, Sums
from omlx_cache_storage.documents import label, salt
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens
from omlx_cache_storage.table import PageColumns

Row = dict[str, object]

MOST_ROWS = 500
KEPT_SECONDS = 5.0
"""For so long one tree answers: whoever opens branch after branch has the pages listed once."""
TEXT_TOKENS = 96
TEXT_CHARACTERS = 300
HASHED_TOKENS = 2**22
"""So many remembered tokens are gone through for one level's texts, at most: half a second."""


class Keeping(Protocol):
    """What is asked of a store."""

    @property
    def decoder(self) -> Decoder | None: ...
    def columns(self) -> Mapping[str, PageColumns]: ...
    def readable_document(self, digest: BlockKey) -> Mapping[str, object]: ...
    def remembered(self, namespace: BlockKey) -> Sequence[Tokens]: ...


class PrefixLevels:
    """Answers for one store. Any thread may call.

    Mutable: `_kept`, replaced as a whole. `_making` is held by whoever makes a tree: of those who
    ask at once the others wait for it, for each tree takes as much memory as the index.
    """

    def __init__(self, store: Keeping) -> None:
        self._store = store
        self._kept: tuple[float, PrefixTree] | None = None
        self._making = threading.Lock()

    def level(
        self, namespace: BlockKey | None, parent: BlockKey | None, limit: int, *, text: bool = False
    ) -> Row:
        """Return the namespaces, the beginnings of one's prefixes, or what follows the block
        `parent`, used last first: `rows`, and how many `more` there are than `limit`.

        `found` is False when the block is cached no longer, or the run goes on behind it by now.
        With `text` the rows have the first `TEXT_CHARACTERS` of what they say, where this process
        remembers it. Reads documents of other processes' namespaces, and nothing else.
        """
        tree, limit = self._tree(), max(1, min(limit, MOST_ROWS))
        if namespace is None:
            roots = tree.namespaces()
            rows = [self._namespace(root) for root in roots[:limit]]
            return _document(None, None, rows, max(0, len(roots) - limit))
        runs, more = tree.roots(namespace, limit) if parent is None else tree.after(parent, limit)
        rows = [_prefix(run) for run in runs]
        if text:
            for row, said in zip(rows, self._texts(namespace, runs), strict=True):
                row["text"] = said
        found = parent is None or tree.has(parent)
        return {**_document(namespace, parent, rows, more), "found": found}

    def tidy(self) -> None:
        """Let go of a tree that nobody has asked for lately."""
        kept = self._kept
        if kept is not None and time.monotonic() - kept[0] > KEPT_SECONDS:
            self._kept = None

    def _tree(self) -> PrefixTree:
        with self._making:
            kept = self._kept
            if kept is not None and time.monotonic() - kept[0] <= KEPT_SECONDS:
                return kept[1]
            # What was kept is not there beside the new one.
            self._kept = kept = None
            tree = PrefixTree(self._store.columns())
            self._kept = time.monotonic(), tree
            return tree

    def _namespace(self, root: Root) -> Row:
        document = self._store.readable_document(root.namespace)
        return {
            "namespace": root.namespace.hex(),
            "model": label(document),
            "salt": salt(document),
            "roots": root.roots,
            "prefixes": root.leaves,
            "blocks": root.blocks,
            "tiers": _tiers(root.sums),
            "used_at": _seconds(root.used_ns),
            "text": self._store.decoder is not None,
        }

    def _texts(self, namespace: BlockKey, runs: Sequence[Run]) -> list[str | None]:
        """Return how each run's text begins, None for what nobody remembers or can decode."""
        document = self._store.readable_document(namespace)
        decoder, size = self._store.decoder, document.get("block_size")
        found: dict[BlockKey, str | None] = {}
        if decoder is None or not isinstance(size, int) or size < 1:
            return [None] * len(runs)
        wanted = {run.key: run for run in runs}
        left = HASHED_TOKENS
        for tokens in self._store.remembered(namespace):
            left -= len(tokens)
            if left < 0 or len(found) == len(wanted):
                break
            chain = KeyChain(namespace, tokens.astype("<i8"), size)
            for key, run in wanted.items():
                if key not in found and run.end <= len(tokens) and chain.key(run.end) == key:
                    found[key] = _text(decoder, tokens, run, label(document))
        return [found.get(run.key) for run in runs]


def _text(decoder: Decoder, tokens: Tokens, run: Run, model: str) -> str | None:
    last = min(run.end, run.start + TEXT_TOKENS)
    text = decoded(decoder, tokens[run.start : last].tolist(), model)
    if text is None:
        return None
    cut = last < run.end or len(text) > TEXT_CHARACTERS
    return text[:TEXT_CHARACTERS] + ("…" if cut else "")


def _document(
    namespace: BlockKey | None, parent: BlockKey | None, rows: list[Row], more: int
) -> Row:
    return {
        "namespace": None if namespace is None else namespace.hex(),
        "parent": None if parent is None else parent.hex(),
        "rows": rows,
        "more": more,
    }


def _prefix(run: Run) -> Row:
    return {
        "key": run.key.hex(),
        "first": run.start,
        "last": run.end,
        "tokens": run.end - run.start,
        "blocks": run.blocks,
        "children": run.children,
        "prefixes": run.leaves,
        "rootless": run.rootless,
        "pinned": run.pinned,
        "tiers": _tiers(run.sums),
        "used_at": _seconds(run.used_ns),
    }


def _tiers(sums: Sums) -> Row:
    both = zip(TIERS, sums.pages, sums.nbytes, strict=True)
    return {tier: {"pages": pages, "bytes": nbytes} for tier, pages, nbytes in both}


def _seconds(stamp_ns: int) -> float | None:
    """Return when something was used, None for what was superseded and leaves first."""
    # A pin's stamp is yet to come.
    return None if stamp_ns <= SUPERSEDED_NS else min(stamp_ns / 1e9, time.time())
