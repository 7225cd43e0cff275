"""Models that are loaded, or else the one line that says which could not be."""

import argparse
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mlx_lm.server import ModelProvider

from omlx_cache.integrations.padding import refuse_batches
from omlx_cache.mlx_lm_versions import is_old
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore
from omlx_cache.tools.places import is_missing_folder
from omlx_cache_storage.cold.health import UNAVAILABLE
from omlx_cache_storage.errors import CacheError

_log = logging.getLogger(__name__)


class CannotLoad(CacheError):
    """A model, an adapter or a draft model is not there, or is none."""


class CannotKeep(CacheError):
    """Nothing can be written to the cold directory."""


def check_cold_dir(settings: CacheSettings) -> None:
    """Raise CannotKeep, in one line, for a cold directory that no store could open, as far as that
    can be told without making it.

    A full disk is no reason: it may have room later. Writes nothing.
    """
    trouble = settings.cold_dir_trouble()
    if trouble:
        raise _cannot_keep(settings, trouble)


def check_opened(store: BlockStore) -> None:
    """Raise CannotKeep when a store that was opened just now could not have its directory."""
    cold = store.stats().cold
    if cold is not None and cold.state.startswith(UNAVAILABLE):
        raise _cannot_keep(store.settings, cold.state.removeprefix(UNAVAILABLE))


def _cannot_keep(settings: CacheSettings, trouble: str) -> CannotKeep:
    return CannotKeep(
        f"nothing can be kept in {settings.cold_dir}: {trouble}; "
        "name another place with --cold-dir, or keep all in memory with --hot-cache-only"
    )


@contextmanager
def loading(args: argparse.Namespace) -> Iterator[None]:
    """Raise CannotLoad, in one line, for whatever the block raises."""
    places = [args.model, args.adapter_path, args.draft_model]
    missing = next((place for place in places if is_missing_folder(place)), None)
    if missing is not None:
        raise CannotLoad(f"cannot load {_wanted(args)}: there is no folder {missing}")
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise CannotLoad(f"cannot load {_wanted(args)}: {lines[0]}") from error


def _wanted(args: argparse.Namespace) -> str:
    adapter = f" with adapter {args.adapter_path}" if args.adapter_path else ""
    draft = f" with draft model {args.draft_model}" if args.draft_model else ""
    return f"{args.model}{adapter}{draft}"


class WatchedProvider(ModelProvider):  # type: ignore[misc]
    """Tells whether the default model was loaded. `prepare` is called once it is there, on the
    thread that computes. `_failure` is written before `_ended` is set."""

    is_batchable: bool

    def __init__(self, args: argparse.Namespace) -> None:
        self._ended = threading.Event()
        self._failure: CannotLoad | None = None
        self.prepare: Callable[[], object] = lambda: None
        super().__init__(args)
        if is_old() and args.model:
            # It looks an adapter up by the path that it found for the name.
            self._adapter_map[args.model] = args.adapter_path

    def _load(self, *key: Any) -> None:
        """Load; a model whose states take padding for tokens is served one request at a time."""
        super()._load(*key)
        refuse_batches(self)

    def load_default(self) -> None:
        """Load on the calling thread, which ends when that fails."""
        try:
            with loading(self.cli_args):
                super().load_default()
            self._prepared()
        except CannotLoad as error:
            self._failure = error
            # The one exception with which a thread ends without a traceback.
            raise SystemExit from None
        finally:
            self._ended.set()

    def _prepared(self) -> None:
        try:
            self.prepare()
        except Exception:
            _log.exception("what a model needs once is left to its first request")

    def ended(self) -> bool:
        """True once the default model is there; raises CannotLoad."""
        if not self._ended.is_set():
            return False
        if self._failure is not None:
            raise self._failure
        return True
