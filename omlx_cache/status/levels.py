"""A level of the tree of cached prefixes as a plain document; its text only where that is asked."""

import threading
import time

import numpy as np

from omlx_cache.control.answering import Answering
from omlx_cache.requests.log import Decoder, decoded
from omlx_cache.status.tree import TIERS, Numbers, PrefixTree, Runs
from omlx_cache_storage.documents import label, salt
from omlx_cache_storage.eviction.keep import SUPERSEDED_NS
from omlx_cache_storage.keys import BlockKey, KeyChain, Tokens

Row = dict[str, object]

MOST_ROWS = 500
KEPT_SECONDS = 5.0
"""How long one tree answers: a reader that opens branch after branch has the pages listed once."""
TEXT_TOKENS = 96
TEXT_CHARACTERS = 300
HASHED_TOKENS = 2**22
"""So many remembered tokens are gone through for one level's texts, at most: half a second."""


class PrefixLevels:
    """Answers for one store. Any thread may call. Mutable: `_kept`, replaced as a whole. A thread
    that makes a tree holds `_making`: others that ask at once wait for it, since each tree takes as
    much memory as the index."""

    def __init__(self, store: Answering) -> None:
        self._store = store
        self._kept: tuple[float, PrefixTree] | None = None
        self._making = threading.Lock()

    def level(
        self, namespace: BlockKey | None, parent: BlockKey | None, limit: int, *, text: bool = False
    ) -> Row:
        """Return the namespaces, the beginnings of one's prefixes, or the runs behind the block
        `parent`, used last first: `rows`, and how many `more` there are than `limit`.

        `found` is False when the block is cached no longer, or the run goes on behind it by now.
        With `text` the rows have the first `TEXT_CHARACTERS` of their text, where this process
        remembers it. Reads documents of other processes' namespaces, and nothing else.
        """
        tree, limit = self._tree(), max(1, min(limit, MOST_ROWS))
        if namespace is None:
            roots = tree.namespaces()
            rows = [self._namespace(digest, runs) for digest, runs in roots[:limit]]
            return _document(None, None, rows, max(0, len(roots) - limit))
        runs, more = tree.roots(namespace, limit) if parent is None else tree.after(parent, limit)
        rows = [_prefix(run) for run in runs]
        for row, said in zip(rows, self._texts(namespace, runs) if text else (), strict=False):
            row["text"] = said
        found = parent is None or tree.has(parent)
        return {**_document(namespace, parent, rows, more), "found": found}

    def tidy(self) -> None:
        kept = self._kept
        if kept is not None and time.monotonic() - kept[0] > KEPT_SECONDS:
            self._kept = None

    def _tree(self) -> PrefixTree:
        with self._making:
            kept = self._kept
            if kept is not None and time.monotonic() - kept[0] <= KEPT_SECONDS:
                return kept[1]
            # The former tree is freed before the new one is made.
            self._kept = kept = None
            tree = PrefixTree(self._store.records())
            self._kept = time.monotonic(), tree
            return tree

    def _namespace(self, namespace: BlockKey, runs: Runs) -> Row:
        document = self._store.readable_document(namespace)
        roots = runs["parent"] < 0
        return {
            "namespace": namespace.hex(),
            "model": label(document),
            "salt": salt(document),
            "roots": int(roots.sum()),
            "prefixes": int(runs["leaves"][roots].sum()),
            "blocks": int(runs["blocks"].sum()),
            "tiers": _tiers(runs["pages"].sum(axis=0), runs["nbytes"].sum(axis=0)),
            "used_at": _seconds(int(runs["used_ns"].max())),
            "text": self._store.decoder is not None,
        }

    def _texts(self, namespace: BlockKey, runs: Runs) -> list[str | None]:
        """Return how each run's text begins, None for text that is forgotten or cannot be
        decoded."""
        document = self._store.readable_document(namespace)
        decoder, size = self._store.decoder, document.get("block_size")
        found: dict[BlockKey, str | None] = {}
        if decoder is None or not isinstance(size, int) or size < 1:
            return [None] * len(runs)
        wanted = [(run["key"], int(run["start"]), int(run["end"])) for run in runs]
        left = HASHED_TOKENS
        for tokens in self._store.requests.explainer.texts(namespace):
            left -= len(tokens)
            if left < 0 or len(found) == len(wanted):
                break
            chain = KeyChain(namespace, tokens.astype("<i8"), size)
            for key, start, end in wanted:
                if key not in found and end <= len(tokens) and chain.key(end) == key:
                    found[key] = _text(decoder, tokens, start, end, label(document))
        return [found.get(key) for key, _, _ in wanted]


def _text(decoder: Decoder, tokens: Tokens, start: int, end: int, model: str) -> str | None:
    last = min(end, start + TEXT_TOKENS)
    text = decoded(decoder, tokens[start:last].tolist(), model)
    if text is None:
        return None
    cut = last < end or len(text) > TEXT_CHARACTERS
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


def _prefix(run: np.void) -> Row:
    start, end = int(run["start"]), int(run["end"])
    return {
        "key": run["key"].hex(),
        "first": start,
        "last": end,
        "tokens": end - start,
        "blocks": int(run["blocks"]),
        "children": int(run["children"]),
        "prefixes": int(run["leaves"]),
        "rootless": bool(run["rootless"]),
        "pinned": bool(run["pinned"]),
        "tiers": _tiers(run["pages"], run["nbytes"]),
        "used_at": _seconds(int(run["used_ns"])),
    }


def _tiers(pages: Numbers, nbytes: Numbers) -> Row:
    both = zip(TIERS, pages.tolist(), nbytes.tolist(), strict=True)
    return {tier: {"pages": count, "bytes": size} for tier, count, size in both}


def _seconds(stamp_ns: int) -> float | None:
    """Return None for a superseded page, which is evicted first."""
    # A pin's stamp is yet to come.
    return None if stamp_ns <= SUPERSEDED_NS else min(stamp_ns / 1e9, time.time())
