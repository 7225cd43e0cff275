"""Which pages other machines get: objects that know chains and uses, and no store."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

Branches = Callable[[Collection[BlockKey]], set[BlockKey]]
"""Says of a chain's keys where other chains leave it."""


class UploadPolicy(Protocol):
    """What of a page that was stored, or of a chain that was used, goes to the remote store; root
    first. Called on the thread that uploads."""

    takes_new: bool
    """Whether a page goes there as soon as it is stored."""

    def of_used(self, chain: Sequence[PageId], branches: Branches) -> Sequence[PageId]:
        """Return what goes there of a chain that a request has used, root first."""
        ...


class All:
    """Everything; and what is used here and was lost there comes back."""

    takes_new = True

    def of_used(self, chain: Sequence[PageId], branches: Branches) -> Sequence[PageId]:
        return chain


class Reused:
    """What a later request than the one that stored it has used."""

    takes_new = False

    def of_used(self, chain: Sequence[PageId], branches: Branches) -> Sequence[PageId]:
        return chain


class Shared:
    """What prompts have in common that go on differently: the used pages up to the last one from
    which another sequence leaves. A system prompt is that as soon as a second conversation begins
    with it, and a conversation's own turns never are."""

    takes_new = False

    def of_used(self, chain: Sequence[PageId], branches: Branches) -> Sequence[PageId]:
        left = branches({page.key for page in chain})
        last = max((at for at, page in enumerate(chain) if page.key in left), default=-1)
        return chain[: last + 1]


POLICIES: dict[str, type[All] | type[Reused] | type[Shared]] = {
    "all": All,
    "reused": Reused,
    "shared": Shared,
}
