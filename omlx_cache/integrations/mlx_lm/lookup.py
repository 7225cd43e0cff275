"""`POST /lookup`: how much of a request's prompt this server could restore, without answering it.

The server that has the tokeniser and the chat template can tell; a router then needs neither.
"""

import logging
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from mlx_lm.server import CompletionRequest

from omlx_cache.integrations.lanes import Lane
from omlx_cache.integrations.mlx_lm.models import served_as
from omlx_cache.integrations.mlx_lm.requests import BadRequest, Refused, Unavailable
from omlx_cache.mlx_lm_versions import has_images
from omlx_cache.restore.lookup import RestorePoint
from omlx_cache.status.prefix_lookup import MOST_KEYS, by_tier, described
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import KeyChain, Tokens, as_tokens

_log = logging.getLogger(__name__)


def look_up(store: BlockStore, responses: Any, body: Any) -> Mapping[str, object]:
    """Return how much of a prompt a response generator could restore, marking nothing as used;
    raises Refused. Any thread may ask."""
    if not isinstance(body, dict) or not (body.get("messages") or body.get("prompt")):
        raise BadRequest("the body must be an object with messages or a prompt")
    messages, prompt = body.get("messages") or [], body.get("prompt", "")
    try:
        if has_images(messages):
            raise BadRequest("a prompt with images cannot be looked up")
        key = responses.model_provider.model_key
        if key is None or not served_as(key, body.get("model")):
            # Another one would have to be loaded: nothing of it is in memory.
            return {**described(store, None), **by_tier(())}
        kind, tools = "chat" if messages else "text", body.get("tools") or None
        request = CompletionRequest(kind, prompt, messages, tools, body.get("role_mapping"))
        options = SimpleNamespace(chat_template_kwargs=body.get("chat_template_kwargs"))
        tokens = as_tokens(responses.tokens_of(request, options))
        store.refresh()
        point, chain = furthest(responses.cache.lanes_of(key), tokens, asks=False)
        known = described(store, None if chain is None else chain.namespace)
        tiers = by_tier(use.info for use in next(iter(point.uses.values()), ()))
        found = {**known, "prompt_tokens": len(tokens), **tiers}
        return found if chain is None else {**found, "keys": _keys(chain)}
    except Refused:
        raise
    except Exception as error:
        _log.debug("a lookup failed", exc_info=True)
        raise Unavailable(f"it cannot be told now: {type(error).__name__}") from error


class Furthest(NamedTuple):
    """How far a prompt can be restored, and the keys by which that was found, None without any."""

    point: RestorePoint
    chain: KeyChain | None


def furthest(lanes: Iterable[Lane], tokens: Tokens, *, asks: bool) -> Furthest:
    """Return the lookup of the lane that has most of a prompt, the first of several; with `asks`
    other machines are asked too. Any thread may ask."""
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
