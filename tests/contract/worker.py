"""`python -m contract.worker SETTINGS`: a store of a process of its own, and requests to it.

SETTINGS is JSON: keywords of `CacheSettings`. Each line of standard input is a JSON document
`{"do": ..., ...}`, with `kinds` for a model that is not the dense one; each answer is one line.
`{"do": "reopen", "settings": ...}` closes the store and opens another one.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

import omlx_cache
from contract.arithmetic import DENSE, Arithmetic, tokens_of
from contract.driving import ask
from omlx_cache import BlockStore, CacheSettings, PrefixCache


def main() -> None:
    store = BlockStore(CacheSettings(**json.loads(sys.argv[1])), name="worker")
    try:
        say({"ready": True})
        for line in sys.stdin:
            task = json.loads(line)
            doing = task.pop("do")
            if doing == "reopen":
                closed = store.close()
                store = BlockStore(CacheSettings(**task["settings"]), name="worker")
                say({"closed": closed})
                continue
            model = Arithmetic(task.pop("kinds", DENSE))
            cache = PrefixCache(model, store, model_id=task.pop("label", "worker"))
            say(globals()[f"do_{doing}"](model, cache, store, **task))
    finally:
        store.close()


def say(document: object) -> None:
    print(json.dumps(document), flush=True)


def do_ask(
    model: Arithmetic,
    cache: PrefixCache,
    store: BlockStore,
    seed: int = 0,
    count: int = 0,
    flush: bool = True,
    commit: bool = True,
    step: int = 32,
    **options: Any,
) -> dict[str, Any]:
    """One request for tokens of a seed."""
    turn = ask(model, cache, tokens_of(seed, count), commit=commit, step=step, **options)
    flushed = store.flush(60) if flush else None
    return {"cached": turn.cached, "reason": turn.reason, "wrong": turn.wrong, "flushed": flushed}


def do_encoded(
    model: Arithmetic,
    cache: PrefixCache,
    store: BlockStore,
    seed: int,
    count: int,
    commit: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """A request whose restored caches have other bits than were computed: a digest of them."""
    tokens = tokens_of(seed, count)
    with cache.session(tokens, **options) as session:
        at = session.cached_tokens
        digest = _digest(session.prompt_cache, at)
        model.feed(session.prompt_cache, tokens[at:], at)
        if commit:
            session.commit()
    flushed = store.flush(60)
    return {"cached": at, "reason": session.miss_reason, "digest": digest, "flushed": flushed}


def _digest(prompt_cache: Sequence[Any], position: int) -> str:
    sha = hashlib.sha256()
    for cache in prompt_cache if position else ():
        for side in (cache.keys, cache.values):
            for part in side if isinstance(side, tuple | list) else [side]:
                held = mx.contiguous(part[..., :position, :])
                sha.update(np.array(held.view(mx.uint8)).tobytes())
    return sha.hexdigest()


def do_lookup(
    model: Arithmetic,
    cache: PrefixCache,
    store: BlockStore,
    seed: int,
    count: int,
    **options: Any,
) -> dict[str, Any]:
    """Where a prefix lies."""
    found = cache.lookup(tokens_of(seed, count), **options)
    pages = [[page.key, page.group, page.start, page.stop] for page in found.pages]
    return {"cached": found.cached_tokens, "pages": sorted(pages, key=lambda page: page[2:])}


def do_fill(
    model: Arithmetic,
    cache: PrefixCache,
    store: BlockStore,
    first: int,
    last: int,
    count: int,
    **options: Any,
) -> dict[str, Any]:
    """Requests for a range of seeds; a line after each."""
    for seed in range(first, last):
        turn = ask(model, cache, tokens_of(seed, count), **options)
        flushed = store.flush(60)
        say({"seed": seed, "cached": turn.cached, "wrong": turn.wrong, "flushed": flushed})
    return {"done": True}


def do_where(model: Arithmetic, cache: PrefixCache, store: BlockStore) -> dict[str, Any]:
    return {"file": omlx_cache.__file__}


def do_clear(
    model: Arithmetic, cache: PrefixCache, store: BlockStore, salt: str | None = None
) -> dict[str, Any]:
    return {"deleted": cache.clear(salt=salt)}


def do_close(
    model: Arithmetic, cache: PrefixCache, store: BlockStore, timeout: float
) -> dict[str, Any]:
    return {"closed": store.close(timeout)}


def do_stats(model: Arithmetic, cache: PrefixCache, store: BlockStore) -> dict[str, Any]:
    usage = store.stats().cold
    assert usage is not None
    return {
        "pages": usage.pages,
        "bytes": usage.nbytes,
        "limit_bytes": usage.limit_bytes,
        "evicted_pages": usage.evicted_pages,
        "corrupt_pages": usage.corrupt_pages,
        "state": usage.state,
    }


if __name__ == "__main__":
    main()
