"""`omlx-cache serve`: load, listen, answer, drain."""

import argparse
import logging
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import LRUPromptCache

from omlx_cache.arrays.mlxio import check_packing
from omlx_cache.integrations.mlx_lm.server.checked import CheckedResponseGenerator
from omlx_cache.integrations.mlx_lm.server.http import HttpServer, bind
from omlx_cache.integrations.mlx_lm.server.inventory import inventory
from omlx_cache.integrations.mlx_lm.server.leaving import last_words, unwritten
from omlx_cache.integrations.mlx_lm.server.limits import Limits
from omlx_cache.integrations.mlx_lm.server.loading import (
    CannotKeep,
    CannotLoad,
    WatchedProvider,
    check_cold_dir,
    check_opened,
)
from omlx_cache.integrations.mlx_lm.server.responses import (
    MeasuredResponseGenerator,
    ServerPromptCache,
)
from omlx_cache.integrations.mlx_lm.server.signals import Signals
from omlx_cache.integrations.mlx_lm.server.stopping import attended
from omlx_cache.integrations.naming import model_name
from omlx_cache.mlx_lm_versions import installed, is_old, set_wired_limit
from omlx_cache.settings import CacheSettings, ConfigError
from omlx_cache.status.routes import Routes
from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 120.0
CLOSE_MARGIN_SECONDS = 5.0
"""What is left of them when a disk has not taken everything by then."""

STOP_SECONDS = 30.0
"""What a chunk that is being computed may take to end, when its request is cut off."""

LAST_WORDS_SECONDS = 2.0
"""What handlers may take to tell clients that their requests were cut off."""


def serve(
    args: argparse.Namespace, settings: Mapping[str, Any], drain_seconds: float, limits: Limits
) -> int:
    """Answer requests until SIGINT or SIGTERM, then finish those under way, write, and return.

    `args` are mlx-lm's server's. Returns 0 when everything that was accepted is on the disk, 1
    when not, when the generation thread died, or when a model could not be loaded. A second signal
    may leave threads behind: the caller is to end the process. Raises ConfigError for bad settings,
    CannotKeep for a directory that cannot be written to, and OSError for an address that cannot be
    had, all before any thread runs MLX.
    """
    cache_settings = CacheSettings(**settings)
    check_cold_dir(cache_settings)
    if args.kv_bits is not None and is_old():
        raise ConfigError(f"kv_bits needs mlx-lm 0.32: {installed()} serves dense caches only")
    if args.kv_bits is not None:
        try:
            check_packing(args.kv_bits, args.kv_group_size)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    said_by_the_store = cache_settings.warnings() + cache_settings.unusable_directory()
    for note in cache_settings.notes():
        if note not in said_by_the_store:
            _log.warning(note)
    leads = mx.distributed.init().rank() == 0
    set_wired_limit()
    with ExitStack() as stack:
        bound = stack.enter_context(bind(args.host, args.port)) if leads else None
        signals = stack.enter_context(Signals(last=True))
        store = BlockStore(cache_settings, name="serve")
        store.service = _service(args, settings, bound)
        try:
            check_opened(store)
            return _Serving(args, store, limits, drain_seconds, signals).run(bound)
        except (CannotLoad, CannotKeep, OSError) as error:
            # Told here, because the caller may only end the process now, not unwind.
            sys.stderr.write(f"omlx-cache: {error}\n")
            store.close(CLOSE_SECONDS)
            return 1


class _Serving:
    """One run of the server: what it needs from its start to its end."""

    def __init__(
        self,
        args: argparse.Namespace,
        store: BlockStore,
        limits: Limits,
        drain_seconds: float,
        signals: Signals,
    ) -> None:
        self._args, self._store, self._limits = args, store, limits
        self._drain_seconds = drain_seconds
        self._signals = signals

    def run(self, bound: socket.socket | None) -> int:
        """Load, serve until a signal, end; returns the exit code. Without a socket, follow the
        rank that has one. Raises CannotLoad, and OSError when the address was taken meanwhile."""
        provider = WatchedProvider(self._args)
        responses = _responses(provider, self._args, self._store, self._limits)
        # While the model is loaded.
        _log.info("%s", inventory(self._store, model_name(self._args.model)))
        while not provider.ended():
            self._signals.wait(0.1)
            if self._signals.count:
                return self._end(None, None, None)
        if bound is None:
            healthy = self._until_signal(responses)
            code = self._end(None, None, responses)
            return code if healthy else 1
        try:
            httpd = HttpServer(bound, responses, self._limits, self._status())
        except BaseException:
            responses.stop(STOP_SECONDS)
            raise
        listener = threading.Thread(target=httpd.serve_forever, name="omlx-cache-http")
        listener.start()
        if self._args.model:
            self._store.add_label(model_name(self._args.model))
        self._store.service = {**self._store.service, "url": httpd.url}
        _announce(httpd.url)
        if httpd.status is not None:
            _log.info("status page: %s/status", httpd.url)
        healthy = self._until_signal(responses)
        code = self._end(httpd, listener, responses)
        return code if healthy else 1

    def _status(self) -> Routes | None:
        """Return the status paths, None unless they were asked for."""
        settings = self._store.settings
        if settings.status == "off":
            return None
        return Routes(self._store.operations, settings.token, samples=True)

    def _until_signal(self, responses: Any) -> bool:
        """Block until a signal or the death of generation; True for the former."""
        while not self._signals.count and responses.generation_available():
            self._signals.wait(0.5)
        return self._signals.count > 0

    def _end(
        self,
        httpd: HttpServer | None,
        listener: threading.Thread | None,
        responses: CheckedResponseGenerator | None,
    ) -> int:
        """End what was begun, within deadlines; returns the exit code."""

        def work(hurry: threading.Event) -> bool:
            ended = False
            try:
                if httpd is not None and listener is not None:
                    self._drain(httpd, listener, hurry)
                ended = responses is None or responses.stop(STOP_SECONDS, hurry)
                if httpd is not None:
                    httpd.gate.wait(LAST_WORDS_SECONDS, threading.Event())
                    httpd.hang_up()
            finally:
                clean = self._close()
            return clean and ended

        return 0 if attended(work, self._signals) else 1

    def _close(self) -> bool:
        """Write what is pending, say what is on the disk and what is not, and return whether all
        that the disk accepted is there."""
        deadline = time.monotonic() + CLOSE_SECONDS
        self._store.end_soon()
        self._store.flush(CLOSE_SECONDS - CLOSE_MARGIN_SECONDS)
        left = unwritten(self._store)
        clean = self._store.close(max(0.0, deadline - time.monotonic()))
        words = last_words(self._store, left, clean)
        _log.log(logging.INFO if words.complete else logging.WARNING, "%s", words.text)
        return clean

    def _drain(self, httpd: HttpServer, listener: threading.Thread, hurry: threading.Event) -> None:
        httpd.stop_listening()
        listener.join()
        _log.info("Draining; a second signal cuts off the requests under way.")
        if not httpd.gate.wait(self._drain_seconds, hurry):
            _log.warning("requests under way are cut off")


def _responses(
    provider: WatchedProvider, args: argparse.Namespace, store: BlockStore, limits: Limits
) -> CheckedResponseGenerator:
    if mx.distributed.init().size() > 1:
        # The ranks must restore the same prefix at the same time; their tiers may differ.
        _log.warning("more than one rank: the prompt cache is mlx-lm's own, in memory")
        return CheckedResponseGenerator(provider, LRUPromptCache(args.prompt_cache_size), limits)
    cache = ServerPromptCache(
        store,
        provider,
        kv_bits=args.kv_bits,
        kv_group_size=args.kv_group_size,
        quantized_kv_start=args.quantized_kv_start,
    )
    return MeasuredResponseGenerator(provider, cache, store, limits)


def _service(
    args: argparse.Namespace, settings: Mapping[str, Any], bound: socket.socket | None
) -> dict[str, object]:
    """Return what a server says of itself to `omlx-cache ps`; its `url` comes once it listens."""
    defaults = set() if getattr(args, "log_level_given", False) else {"log_level"}
    return {
        "port": None if bound is None else bound.getsockname()[1],
        "url": None,
        "model": args.model,
        "folder": _folder(args.model),
        "adapter": args.adapter_path,
        "draft_model": args.draft_model,
        "flags": sorted(settings.keys() - defaults),
    }


def _folder(model: str | None) -> str | None:
    return str(Path(model).resolve()) if model and Path(model).is_dir() else None


def _announce(url: str) -> None:
    sys.stdout.write(f"Listening on {url}\n")
    sys.stdout.flush()
