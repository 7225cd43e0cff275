"""`POST /lookup`: how much of a request's prompt this server could restore, without answering it.

The server that has the tokeniser and the chat template can tell; a router then needs neither.
"""

import logging
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from mlx_lm.server import CompletionRequest

from omlx_cache.integrations.mlx_lm.lanes import Lane
from omlx_cache.integrations.mlx_lm.models import served_as
from omlx_cache.integrations.mlx_lm.requests import BadRequest, Refused, Unavailable
from omlx_cache.mlx_lm_versions import has_images
from omlx_cache.restore.lookup import RestorePoint
from omlx_cache.status.prefix_lookup import MOST_KEYS, TierTokens, by_tier, described
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import KeyChain, Tokens, as_tokens

_log = logging.getLogger(__name__)


class LooksUp(Protocol):
    """What makes tokens of a request without a place in any queue, and knows a model's lanes. Any
    thread may ask."""

    @property
    def model_provider(self) -> Any: ...
    @property
    def cache(self) -> Any: ...
    def tokens_of(self, request: Any, args: Any) -> list[int]: ...


class PromptLookup:
    """Answers look-ups on the threads of those who ask; holds nothing mutable."""

    def __init__(self, store: BlockStore, responses: LooksUp) -> None:
        self._store, self._responses = store, responses

    def __call__(self, body: Any) -> Mapping[str, object]:
        """Return what could be restored of a prompt, marking nothing as used; raises Refused."""
        if not isinstance(body, dict) or not (body.get("messages") or body.get("prompt")):
            raise BadRequest("the body must be an object with messages or a prompt")
        messages = body.get("messages")
        kind = "chat" if messages else "text"
        options = SimpleNamespace(chat_template_kwargs=body.get("chat_template_kwargs"))
        try:
            if messages and has_images(messages):
                raise BadRequest("a prompt with images cannot be looked up")
            request = CompletionRequest(
                kind,
                body.get("prompt", ""),
                messages or [],
                body.get("tools") or None,
                body.get("role_mapping"),
            )
            return self._answer(request, options, body.get("model"))
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
        point, chain = furthest(self._responses.cache.lanes_of(key), tokens, asks=False)
        known = described(self._store, None if chain is None else chain.namespace)
        first = next(iter(point.uses.values()), ())
        tiers = by_tier(use.info for use in first)._asdict()
        found = {**known, "prompt_tokens": len(tokens), **tiers}
        return found if chain is None else {**found, "keys": _keys(chain)}


class Furthest(NamedTuple):
    """How far a prompt can be restored, and the keys by which that was found, None without any."""

    point: RestorePoint
    chain: KeyChain | None


def furthest(lanes: Iterable[Lane], tokens: Tokens, *, asks: bool) -> Furthest:
    """Return what the lane has that has most of a prompt, the first of several; with `asks` other
    machines are asked too. Any thread may ask."""
    best = Furthest(RestorePoint(0, {}, None, 0), None)
    for lane in lanes:
        if lane.view.supported:
            chain = lane.view.chain(tokens)
            point = lane.view.find(chain, len(tokens) - 1, asks=asks)
            if best.chain is None or point.position > best.point.position:
                best = Furthest(point, chain)
    return best


def _keys(chain: KeyChain) -> list[str]:
    """Return some of a chain's boundaries, with the last one, for `GET /lookup` of others."""
    blocks = len(chain) // chain.block_size
    step = -(-blocks // MOST_KEYS) or 1
    return [chain.key(n * chain.block_size).hex() for n in reversed(range(blocks, 0, -step))]
