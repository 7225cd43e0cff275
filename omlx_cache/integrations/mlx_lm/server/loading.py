"""Models that are loaded, or else the one line that says which could not be."""

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mlx_lm.server import ModelProvider

from omlx_cache_storage.errors import CacheError


class CannotLoad(CacheError):
    """A model, an adapter or a draft model is not there, or is none."""


@contextmanager
def loading(args: argparse.Namespace) -> Iterator[None]:
    """Raise CannotLoad, in one line, for whatever the block raises."""
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
    """Tells whether the default model was loaded. `_failure` is written before `_ended` is set."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._ended = threading.Event()
        self._failure: CannotLoad | None = None
        super().__init__(args)

    def load_default(self) -> None:
        """Load on the calling thread, which ends when that fails."""
        try:
            with loading(self.cli_args):
                super().load_default()
        except CannotLoad as error:
            self._failure = error
            # The one exception with which a thread ends without a traceback.
            raise SystemExit from None
        finally:
            self._ended.set()

    def ended(self) -> bool:
        """True once the default model is there; raises CannotLoad."""
        if not self._ended.is_set():
            return False
        if self._failure is not None:
            raise self._failure
        return True
