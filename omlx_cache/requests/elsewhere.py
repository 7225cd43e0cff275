"""Whether a prompt is stored in another namespace: for another model, or under other settings."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from omlx_cache.requests.explanation import Elsewhere
from omlx_cache_storage.keys import BlockKey, KeyChain
from omlx_cache_storage.page import PAGED, PageId, PageInfo, Tail

_TENANT = ("salt", "extra")
_MODEL = ("model", "adapter")
_PLAIN = ("format", "architecture", "layout", "block_size", "key_hash", "codec")
MOST = 64
"""How many other namespaces are looked into for one prompt."""


class Finding(Protocol):
    """What is asked of the tiers; reads nothing."""

    def find(self, page: PageId) -> PageInfo | None: ...
    def tails(self, parent: BlockKey) -> set[Tail]: ...


Documents = Mapping[BlockKey, Mapping[str, object]]


class OtherNamespaces:
    """Looks through the namespaces of this process and those that its disk had at the start.

    Only those of the same salt and `extra` are looked at. Any thread may call; reads no disk.
    """

    def __init__(self, tiers: Finding, known: Callable[[], Documents], on_disk: Documents) -> None:
        self._tiers = tiers
        self._known = known
        self._on_disk = on_disk

    def find(self, chain: KeyChain, groups: Iterable[str]) -> Elsewhere | None:
        """Return where the beginning of a sequence is stored, for the same model if it is."""
        documents = {**self._on_disk, **self._known()}
        mine = documents.pop(chain.namespace, None)
        if mine is None:
            return None
        names = {PAGED, *groups}
        looked = 0
        best: Elsewhere | None = None
        for digest, document in reversed(list(documents.items())):
            if any(document.get(name) != mine.get(name) for name in _TENANT):
                continue
            looked += 1
            if looked > MOST:
                break
            if self._has_beginning(digest, document, chain, names):
                found = _compared(document, mine)
                if best is None or best.is_model:
                    best = found
        return best

    def _has_beginning(
        self, digest: BlockKey, document: Mapping[str, object], chain: KeyChain, names: set[str]
    ) -> bool:
        size, key_hash = document.get("block_size"), document.get("key_hash")
        if not isinstance(size, int) or size < 1 or key_hash not in ("sha256", "xxh3"):
            return False
        there = KeyChain(digest, chain.tokens, size, key_hash)
        ends = {min(size, len(there))}
        ends |= {tail.position for tail in self._tiers.tails(digest) if tail.position <= len(there)}
        pages = (PageId(there.key(end), name) for end in ends if end > 0 for name in names)
        return any(self._tiers.find(page) is not None for page in pages)


def _compared(stored: Mapping[str, object], now: Mapping[str, object]) -> Elsewhere:
    models = _differing(_MODEL, stored, now)
    changed = models or _differing(_PLAIN, stored, now) | _differing(
        ("mlx", "mlx-lm"), _software(stored), _software(now)
    )
    return Elsewhere(bool(models), changed, str(stored.get("label", "")))


def _differing(
    names: Iterable[str], stored: Mapping[str, object], now: Mapping[str, object]
) -> dict[str, tuple[str, str]]:
    pairs = {name: (_short(stored.get(name)), _short(now.get(name))) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _software(document: Mapping[str, object]) -> Mapping[str, object]:
    software = document.get("software")
    return software if isinstance(software, dict) else {}


def _short(value: object) -> str:
    return str(value)[:200]
