"""A probe of whether restored caches are right with untested versions of a server.

It prefills 300 tokens, stores them in a directory of its own, and restores them. It compares both
bit for bit: keys, values and states, and the logits of the next tokens. It takes seconds, once for
a model and a set of versions.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx

from omlx_cache.arrays.mlxio import TOKEN_AXIS
from omlx_cache.identity.fingerprint import fingerprint_model
from omlx_cache.identity.namespace import software, version_of
from omlx_cache.package import VERSION
from omlx_cache.pages.layout import layout_of
from omlx_cache.prefix import PrefixCache
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.machine import probe as this_machine
from omlx_cache.store import BlockStore
from omlx_cache_storage.cold.disk import DISK, replace_file

_log = logging.getLogger(__name__)

TOKENS = 300
"""More than a block, so that a page and a tail are restored."""
NEXT = 4
"""Tokens that are computed from both caches: behind the first one a full ring goes round."""
FLUSH_SECONDS = 60.0
RIGHT = "right"


def is_right(
    package: str,
    model: Any,
    make_cache: Callable[[], list[Any]] | None = None,
    *,
    remembered: Path | None = None,
) -> bool:
    """Return whether a model's restored caches equal an uninterrupted run's, and log why not; never
    raises. Computes 600 tokens where nothing is `remembered` (by default in the user's state
    directory) of the `package`'s version, MLX's, mlx-lm's and ours: call it on the model's thread.
    """
    try:
        versions = {"omlx-cache": VERSION, package: version_of(package), **software()}
        asked = "\n".join([*map("=".join, sorted(versions.items())), fingerprint_model(model)])
        machine = this_machine()
        directory = remembered or (machine.state_dir or machine.home) / "probes"
        file = directory / hashlib.sha256(asked.encode()).hexdigest()[:32]
        found = file.read_text() if file.exists() else ""
        if not found:
            _log.info("%s %s was not tested: it is tried now", package, versions[package])
            found = difference(model, make_cache) or RIGHT
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(file, found.encode(), DISK)
    except Exception as error:
        found = f"it cannot be tried ({error!r})"
    if found != RIGHT:
        _log.warning("restored caches are not those of an uninterrupted run: %s", found)
    return found == RIGHT


def difference(model: Any, make_cache: Callable[[], list[Any]] | None = None) -> str:
    """Return what differs between a restored and an uninterrupted run, "" for nothing, and for a
    model whose caches are not stored. Raises the model's exceptions, and OSError."""
    tokens = [1 + (7 * i * i + 11 * i) % 100 for i in range(TOKENS + NEXT)]
    with TemporaryDirectory(prefix="omlx-cache-probe-") as folder:
        settings = CacheSettings(
            machine=replace(this_machine(), state_dir=None),
            cold_dir=folder,
            hot_cache_only=False,
            hot_bytes="8GiB",
            cold_bytes="8GiB",
            min_free_bytes=0,
            daily_write_bytes=0,
            write_policy="through",
            durability="none",
            codec="dense",
            cold_codec="dense",
            worth_reading="off",
            remote="off",
            trace="off",
            socket="off",
            status="off",
        )
        with BlockStore(settings) as store:
            cache = PrefixCache(model, store, make_cache=make_cache)
            if cache.unsupported_reason:
                return ""
            with cache.session(tokens[:TOKENS]) as session:
                for chunk in session.prefill_chunks():
                    mx.eval(_logits(model, chunk, session.prompt_cache))
                session.commit()
                live = session.prompt_cache
            if not store.flush(FLUSH_SECONDS):
                raise OSError("the pages were not written")
        with BlockStore(settings) as store:
            cache = PrefixCache(model, store, make_cache=make_cache)
            room = max(0, _room(live) - TOKENS - 1)
            with cache.session(tokens[: TOKENS + 1], max_new_tokens=room) as session:
                if session.cached_tokens != TOKENS:
                    return f"{session.cached_tokens} tokens of {TOKENS}: {session.miss_reason}"
                return _differing(live, session.prompt_cache) or _continued(
                    model, tokens[TOKENS:], live, session.prompt_cache
                )


def _room(live: Sequence[Any]) -> int:
    """Return how many tokens the buffers of keys and values have room for."""
    leaves = [leaf for leaf in layout_of(live).leaves if leaf.group.kind == "paged"]
    return max(
        (a.shape[TOKEN_AXIS] for leaf in leaves for a in leaf.adapter.arrays(leaf.cache).values()),
        default=0,
    )


def _differing(live: Sequence[Any], restored: Sequence[Any]) -> str:
    for theirs, ours in zip(layout_of(live).leaves, layout_of(restored).leaves, strict=True):
        arrays = theirs.adapter.arrays(theirs.cache)
        held, wanted = (
            [token for span in leaf.adapter.held(leaf.cache) for token in range(*span)]
            for leaf in (theirs, ours)
        )
        for name, array in ours.adapter.arrays(ours.cache).items():
            other = arrays[name]
            if ours.group.kind != "state":
                array = mx.take(array, mx.arange(len(wanted)), axis=TOKEN_AXIS)
                other = mx.take(other, mx.array([held.index(t) for t in wanted]), axis=TOKEN_AXIS)
            if not _same(other, array):
                return f"{name} of layer {ours.path}"
    return ""


def _continued(
    model: Any, tokens: Sequence[int], live: Sequence[Any], restored: Sequence[Any]
) -> str:
    for token in tokens:
        if not _same(*(_logits(model, [token], caches) for caches in (live, restored))):
            return "the logits of the next tokens"
    return ""


def _logits(model: Any, tokens: Sequence[int], caches: Sequence[Any]) -> mx.array:
    given = model(mx.array([list(tokens)]), cache=caches)
    logits: mx.array = getattr(given, "logits", given)
    return logits


def _same(one: mx.array, other: mx.array) -> bool:
    """True where shape, type and every bit agree, also the bits of a NaN."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    one, other = mx.contiguous(one), mx.contiguous(other)
    return bool(mx.array_equal(one.view(mx.uint8), other.view(mx.uint8)).item())
