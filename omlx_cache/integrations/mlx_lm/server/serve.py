"""`omlx-cache serve`: load, listen, answer, drain."""

import argparse
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import LRUPromptCache
from mlx_lm.utils import maybe_set_recommended_wired_limit

from omlx_cache.integrations.mlx_lm.server.checked import CheckedResponseGenerator
from omlx_cache.integrations.mlx_lm.server.http import HttpServer, bind
from omlx_cache.integrations.mlx_lm.server.loading import CannotLoad, WatchedProvider
from omlx_cache.integrations.mlx_lm.server.responses import (
    MeasuredResponseGenerator,
    ServerPromptCache,
)
from omlx_cache.settings import CacheSettings
from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 120.0


def serve(args: argparse.Namespace, settings: Mapping[str, Any], drain_seconds: float) -> int:
    """Answer requests until SIGINT or SIGTERM, then finish those under way, write, and return.

    `args` are mlx-lm's server's. Returns 0 when everything that was accepted is on the disk, 1
    when not, when the generation thread died, or when a model could not be loaded. Raises
    ConfigError for bad settings and OSError for an address that cannot be had, both before any
    thread runs MLX.
    """
    logging.basicConfig(
        level=args.log_level.upper(), format="%(asctime)s - %(levelname)s - %(message)s"
    )
    cache_settings = CacheSettings(**settings)
    said_by_the_store = cache_settings.empty_budgets()
    for note in cache_settings.notes():
        if note not in said_by_the_store:
            _log.warning(note)
    leads = mx.distributed.init().rank() == 0
    maybe_set_recommended_wired_limit()
    with ExitStack() as stack:
        bound = stack.enter_context(bind(args.host, args.port)) if leads else None
        store = stack.enter_context(BlockStore(cache_settings, name="serve"))
        try:
            healthy = _run(args, store, bound, drain_seconds)
        except (CannotLoad, OSError) as error:
            # Told here, because the caller may only end the process now, not unwind.
            sys.stderr.write(f"omlx-cache: {error}\n")
            return 1
        clean = store.close(CLOSE_SECONDS)
        _log.info("Everything is on the disk." if clean else "Not everything is on the disk.")
        return 0 if clean and healthy else 1


def _run(
    args: argparse.Namespace, store: BlockStore, bound: socket.socket | None, drain_seconds: float
) -> bool:
    """Load, then serve until a signal; False when generation died before that.

    Without a socket, follow the rank that has one. Raises CannotLoad, and OSError when the
    address was taken meanwhile.
    """
    stop, hurry = threading.Event(), threading.Event()
    with _Signals(stop, hurry):
        provider = WatchedProvider(args)
        responses = _responses(provider, args, store)
        if not provider.wait(stop):
            return True
        if bound is not None:
            return _listen(bound, responses, drain_seconds, stop, hurry)
        return _until(stop, responses)


def _responses(
    provider: WatchedProvider, args: argparse.Namespace, store: BlockStore
) -> CheckedResponseGenerator:
    if mx.distributed.init().size() > 1:
        # The ranks must restore the same prefix at the same time; their tiers may differ.
        _log.warning("more than one rank: the prompt cache is mlx-lm's own, in memory")
        return CheckedResponseGenerator(provider, LRUPromptCache(args.prompt_cache_size))
    cache = ServerPromptCache(
        store,
        provider,
        kv_bits=args.kv_bits,
        kv_group_size=args.kv_group_size,
        quantized_kv_start=args.quantized_kv_start,
    )
    return MeasuredResponseGenerator(provider, cache, store)


def _listen(
    bound: socket.socket,
    responses: Any,
    drain_seconds: float,
    stop: threading.Event,
    hurry: threading.Event,
) -> bool:
    """Serve until `stop`, drain and end all threads; False when generation died before that."""
    try:
        httpd = HttpServer(bound, responses)
    except BaseException:
        responses.stop_and_join()
        raise
    # Signals are handled on the main thread, which must therefore be free to wait for them.
    listener = threading.Thread(target=httpd.serve_forever, name="omlx-cache-http")
    listener.start()
    _announce(httpd.url)
    try:
        return _until(stop, responses)
    finally:
        httpd.shutdown()
        listener.join()
        _log.info("Draining; a second signal cuts off the requests under way.")
        if not httpd.inflight.wait(drain_seconds, hurry):
            _log.warning("requests under way are cut off")
        responses.stop_and_join()
        httpd.hang_up()


def _until(stop: threading.Event, responses: Any) -> bool:
    """Block until `stop` is set or generation has died; True for the former."""
    while not stop.wait(0.5) and responses.generation_available():
        pass
    return stop.is_set()


def _announce(url: str) -> None:
    sys.stdout.write(f"Listening on {url}\n")
    sys.stdout.flush()


class _Signals:
    """Turns the first SIGINT or SIGTERM into `stop` and the second into `hurry`, in a block."""

    def __init__(self, stop: threading.Event, hurry: threading.Event) -> None:
        self._stop = stop
        self._hurry = hurry
        self._before: dict[int, Callable[..., Any] | int | None] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, *_: object) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()
