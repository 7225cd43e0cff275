"""Prompts that are looked up outside the queue, on the thread of who asks.

`POST /lookup` says how much of a request's prompt this server could restore, without answering it:
the server that has the tokeniser and the chat template can tell, and a router then needs neither.
And what other machines have of a prompt comes before its request is queued: the thread that
computes answers would wait for the network, and with it everybody who is being answered.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from mlx_lm.server import CompletionRequest

from omlx_cache.arrays.mlxio import allocate_payload
from omlx_cache.integrations.mlx_lm.lanes import Lane
from omlx_cache.integrations.mlx_lm.models import served_as
from omlx_cache.integrations.mlx_lm.server.refusals import BadRequest, Refused, Unavailable
from omlx_cache.integrations.mlx_lm.server.requests import check_body
from omlx_cache.mlx_lm_versions import has_images
from omlx_cache.restore.lookup import RestorePoint
from omlx_cache.status.prefix_lookup import MOST_KEYS, TierTokens, by_tier, described
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import KeyChain, Tokens, as_tokens
from omlx_cache_storage.page import REMOTE, PageId

AHEAD_SECONDS = 30.0
"""A request is queued by then, whatever has come: what is missing is read when its turn comes."""

_log = logging.getLogger(__name__)


class Lanes(Protocol):
    """What knows the lanes of a model that was served before. Any thread may ask."""

    def lanes_of(self, model: Any) -> Iterable[Lane]: ...


class Tokenising(Protocol):
    """What makes tokens of a request, without a place in any queue. Any thread may ask."""

    @property
    def model_provider(self) -> Any: ...
    def tokens_of(self, request: Any, args: Any) -> list[int]: ...


class PromptLookup:
    """Answers look-ups on the threads of those who ask; holds nothing mutable."""

    def __init__(self, store: BlockStore, responses: Tokenising, lanes: Lanes) -> None:
        self._store, self._responses, self._lanes = store, responses, lanes

    def __call__(self, body: Mapping[str, Any]) -> Mapping[str, object]:
        """Return what could be restored of a prompt, marking nothing as used; raises Refused."""
        chat = "messages" in body
        check_body(body, chat=chat)
        if chat and has_images(body["messages"]):
            raise BadRequest("a prompt with images cannot be looked up")
        request = CompletionRequest(
            "chat" if chat else "text",
            "" if chat else body["prompt"],
            body.get("messages"),
            body.get("tools") or None,
            body.get("role_mapping"),
        )
        args = SimpleNamespace(chat_template_kwargs=body.get("chat_template_kwargs"))
        try:
            return self._answer(request, args, body.get("model"))
        except Refused:
            raise
        except Exception as error:
            _log.debug("a look-up failed", exc_info=True)
            raise Unavailable(f"it cannot be told now: {type(error).__name__}") from error

    def _answer(self, request: Any, args: Any, model: Any) -> Mapping[str, object]:
        key = self._responses.model_provider.model_key
        if key is None or not served_as(key, model):
            # Another one would have to be loaded: nothing of it is in memory.
            return {**described(self._store, None), **TierTokens()._asdict()}
        tokens = as_tokens(self._responses.tokens_of(request, args))
        self._store.refresh()
        best, chain = _furthest(self._lanes.lanes_of(key), tokens, asks=False)
        known = described(self._store, None if chain is None else chain.namespace)
        found = {**known, "prompt_tokens": len(tokens), **_tokens(best)._asdict()}
        return found if chain is None else {**found, "keys": _keys(chain)}


class Ahead:
    """Brings remote pages into free memory; called on the thread of who asks. Raises nothing, and
    changes nothing but what is in memory: what is wrong with a request its turn will tell."""

    def __init__(self, store: BlockStore, responses: Tokenising, lanes: Lanes) -> None:
        self._store, self._responses, self._lanes = store, responses, lanes

    def __call__(self, request: Any, args: Any) -> None:
        """Ask the store for a prompt, and wait for what it has; at once without a remote tier."""
        key = self._responses.model_provider.model_key
        if self._store.remote is None or key is None or not served_as(key, args.model.model):
            return
        try:
            lanes = list(self._lanes.lanes_of(key))
            if any(lane.view.supported for lane in lanes):
                self._bring(lanes, as_tokens(self._responses.tokens_of(request, args)))
        except Exception:
            _log.debug("nothing was fetched ahead", exc_info=True)

    def _bring(self, lanes: Sequence[Lane], tokens: Tokens) -> None:
        uses = _furthest(lanes, tokens).point.uses
        far = [use for each in uses.values() for use in each if use.info.tier == REMOTE]
        far.sort(key=lambda use: use.info.position)
        pages: list[PageId] = [use.page for use in far]
        if pages:
            self._store.prefetch(pages, allocate_payload).wait(AHEAD_SECONDS)


class _Found(NamedTuple):
    """How far a prompt can be restored, and the keys by which that was found, None without any."""

    point: RestorePoint
    chain: KeyChain | None


def _furthest(lanes: Iterable[Lane], tokens: Tokens, *, asks: bool = True) -> _Found:
    """Return what the lane has that has most of a prompt, the first of several."""
    best = _Found(RestorePoint(0, {}, None, 0), None)
    for lane in lanes:
        if lane.view.supported:
            chain = lane.view.chain(tokens)
            point = lane.view.find(chain, len(tokens) - 1, asks=asks)
            if best.chain is None or point.position > best.point.position:
                best = _Found(point, chain)
    return best


def _tokens(point: RestorePoint) -> TierTokens:
    first = next(iter(point.uses.values()), ())
    return by_tier(use.info for use in first)


def _keys(chain: KeyChain) -> list[str]:
    """Return some of a chain's boundaries, with the last one, for `GET /lookup` of others."""
    blocks = len(chain) // chain.block_size
    step = -(-blocks // MOST_KEYS) or 1
    return [chain.key(n * chain.block_size).hex() for n in reversed(range(blocks, 0, -step))]
