"""The store that both of the demo's processes open, and the cache on it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx_cache.prefix import PrefixCache
from omlx_cache.settings import CacheSettings
from omlx_cache.settings.names import LONGEST_WAIT
from omlx_cache.store import BlockStore
from omlx_cache.tools.demo.errors import DemoError
from omlx_cache.tools.demo.prompts import Prompts

_ROOM = 64 << 20


@dataclass(frozen=True, slots=True)
class KeepAt:
    """A snapshot policy: recurrent state is kept where the demo restores, and nowhere else."""

    places: tuple[int, ...]

    def positions(self, *, start: int, stop: int, block_size: int, branch: int | None) -> list[int]:
        return [place for place in self.places if start < place < stop]


def demo_settings(
    cold_dir: Path, kv_bytes: int, block_size: int | None = None, *, hot_bytes: int | None = None
) -> CacheSettings:
    """Return settings with room for every page of the demo, whatever the environment grants; in
    memory too, unless `hot_bytes` says otherwise.

    Lossless, since the demo promises equal tokens. Raises ConfigError for a bad environment.
    """
    budget = 8 * kv_bytes + _ROOM
    hot = budget if hot_bytes is None else hot_bytes
    return CacheSettings(
        cold_dir=cold_dir,
        hot_bytes=hot,
        cold_bytes=4 * budget,
        queue_bytes=hot,
        commit_wait_seconds=LONGEST_WAIT,
        min_free_bytes=0,
        hot_cache_only=False,
        write_policy="through",
        codec="dense",
        socket="off",
        **({} if block_size is None else {"block_size": block_size}),
    )


def demo_cache(model: Any, store: BlockStore, length: int, shared: int) -> PrefixCache:
    """Return the prefix cache of the demo's model; raises DemoError when it cannot be kept."""
    cache = PrefixCache(model, store, policy=KeepAt((shared, length - 1)))
    if cache.unsupported_reason is not None:
        raise DemoError(f"the cache of this model cannot be kept: {cache.unsupported_reason}")
    return cache


def demo_salt(prompts: Prompts) -> str:
    """Return a salt that separates runs whose steps end at other places."""
    return f"demo {len(prompts.first)} {prompts.shared}"


def can_forget_file_cache() -> bool:
    """True where the system can be asked to drop a file's bytes from its memory."""
    return hasattr(os, "posix_fadvise")


def forget_file_cache(directory: Path) -> None:
    """Drop the bytes of the directory's pages from the system's memory, where that can be."""
    if not can_forget_file_cache():
        return
    for path in directory.rglob("*.safetensors"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
