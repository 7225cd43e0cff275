"""mlx-lm's server with this cache: load, listen, answer, drain."""

import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from huggingface_hub.constants import HF_HUB_CACHE
from transformers import PretrainedConfig

from omlx_cache.control.listener import bind
from omlx_cache.integrations.lanes import model_name
from omlx_cache.integrations.launching import CannotRun, waits_for_disk
from omlx_cache.integrations.mlx_lm.holdings import (
    inventory,
    last_words,
    unwritten,
)
from omlx_cache.integrations.mlx_lm.http import HttpServer
from omlx_cache.integrations.mlx_lm.responses import Responses
from omlx_cache.settings.names import ConfigError
from omlx_cache.status.routes import Routes
from omlx_cache.store import BlockStore
from omlx_cache_storage.breaker import UNAVAILABLE

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 120.0
CLOSE_MARGIN_SECONDS = 5.0
"""Left of them when a disk has not taken everything by then."""
STOP_SECONDS = 30.0
"""For a running chunk to end, when its request is cut off."""
LAST_WORDS_SECONDS = 2.0
"""For handlers to tell clients that their requests were cut off."""
CONTEXT_TOKENS = 1 << 20
"""For a model whose configuration names no context."""
POLL_SECONDS = 0.05
HURRY_SECONDS = 5.0
"""Left to the end by a second signal."""
_TAKEN = "; `omlx-cache ps` shows running servers, and --port takes another"

_CONTEXT_FIELDS = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "model_max_length",
    "n_positions",
    "n_ctx",
    "seq_length",
)
_PARTS = ("text_config", "llm_config", "language_config")
_SCALINGS = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True, slots=True)
class Serving:
    """The flags that `omlx-cache serve` adds to mlx-lm's. `prompt_tokens` None: the model's
    context. `has_status`: the status paths are answered at the server's own port. `verbose`:
    mlx-lm's lines about the progress of prompts are shown. `given`: the settings that were flags,
    and `keep_reasoning`."""

    body_bytes: int = 32 << 20
    prompt_tokens: int | None = None
    drain_seconds: float = 30.0
    has_status: bool = False
    verbose: bool = True
    keep_reasoning: bool = False
    given: tuple[str, ...] = ()

    def tokens_of(self, model: str) -> int:
        return self.prompt_tokens or context_of(model)


def serve(
    open_store: Callable[..., BlockStore],
    serving: Serving,
    upstream: Callable[..., Any],
    host: str,
    port: int,
    provider: Any,
    *_: Any,
    **__: Any,
) -> None:
    """Answer requests until SIGINT or SIGTERM, then finish the requests in flight and write; mlx-lm
    calls its `run` with `host` and all after it.

    Raises SystemExit: 0 when all accepted pages are on the disk, 1 when not, or when the generation
    thread died, and a line of text when the model could not be loaded. A second signal may leave
    threads behind: the caller is to end the process. Raises ConfigError for bits that MLX lacks,
    CannotRun for a directory that cannot be opened, and OSError for an unavailable address, before
    any thread runs MLX.
    """
    if mx.distributed.init().size() > 1:
        # The ranks must restore the same prefix at the same time; their tiers may differ.
        _log.warning("more than one rank: the prompt cache is mlx-lm's own, in memory")
        upstream(host, port, provider)
        return
    root = logging.getLogger()
    if not (serving.verbose or root.isEnabledFor(logging.DEBUG)):
        root.addFilter(lambda record: record.levelno > logging.INFO or record.module != "server")
    with suppress(OSError):
        # mlx-lm lists its models at /v1/models, and breaks off where there is no such folder.
        Path(HF_HUB_CACHE).mkdir(parents=True, exist_ok=True)
    with bind(host, port, _TAKEN) as bound, Signals() as signals:
        store = open_store(waits=True)
        store.service = _service(provider.cli_args, serving, bound)
        cold = store.stats().cold
        if (
            cold is not None
            and cold.state.startswith(UNAVAILABLE)
            and not waits_for_disk(store.settings, cold.state)
        ):
            store.close(0.0)
            raise CannotRun(
                f"nothing can be kept in {store.settings.cold_dir}: "
                f"{cold.state.removeprefix(UNAVAILABLE)}"
            )
        try:
            responses = Responses(provider, store, serving.tokens_of, serving.keep_reasoning)
        except ValueError as error:
            store.close(CLOSE_SECONDS)
            raise ConfigError(str(error)) from error
        raise SystemExit(_Run(serving, store, responses, signals).run(bound))


class Signals:
    """Counts SIGINT, SIGTERM and SIGHUP while the block runs, on the main thread. The process ends
    after the block, and signals are ignored from then on: one more would interrupt that end. The
    handler runs between any two instructions: it takes no lock and wakes no thread."""

    def __init__(self) -> None:
        self.count = 0
        # The terminal's end ends the server, unless `nohup` has said that it shall not.
        ignores = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._numbers = [signal.SIGINT, signal.SIGTERM, *([] if ignores else [signal.SIGHUP])]

    def __enter__(self) -> "Signals":
        for number in self._numbers:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, *_: object) -> None:
        self.count += 1


def attended(work: Callable[[threading.Event], bool], signals: Signals) -> bool:
    """Run `work` on a thread and return its result; False when people would not wait for it. The
    main thread can answer a signal meanwhile. A second one sets the event that `work` gets, and
    leaves it `HURRY_SECONDS`; a third leaves it no time, and the thread behind."""
    hurry = threading.Event()
    answers: list[bool] = []

    def run() -> None:
        try:
            answers.append(work(hurry))
        except Exception:
            _log.exception("the server could not be ended properly")

    worker = threading.Thread(target=run, name="omlx-cache-stop", daemon=True)
    worker.start()
    deadline: float | None = None
    while worker.is_alive():
        time.sleep(POLL_SECONDS)
        if signals.count >= 2 and deadline is None:
            hurry.set()
            deadline = time.monotonic() + HURRY_SECONDS
        if deadline is not None and (signals.count >= 3 or time.monotonic() > deadline):
            # Nothing is logged: the reader of the log may be the cause of the wait.
            return False
    return bool(answers and answers[0])


class _Run:
    def __init__(
        self, serving: Serving, store: BlockStore, responses: Responses, signals: Signals
    ) -> None:
        self._serving, self._store = serving, store
        self._responses, self._signals = responses, signals
        self._args = responses.model_provider.cli_args

    def run(self, bound: socket.socket) -> int | str:
        """Load, serve until a signal, end; returns the exit code, or why it did not start."""
        store, responses, model = self._store, self._responses, self._args.model
        store.decoder = self._decoded
        while not responses.loaded.is_set():
            time.sleep(POLL_SECONDS)
            if self._signals.count:
                return 0 if attended(lambda hurry: self._close(), self._signals) else 1
        if responses.failure is not None:
            store.close(CLOSE_SECONDS)
            return f"omlx-cache: {responses.failure}"
        # A model that cannot be loaded costs no page.
        store.wait_no_more()
        _log.info("%s", inventory(store, model_name(model)))
        try:
            httpd = HttpServer(bound, responses, self._serving.body_bytes, store, self._status())
        except OSError as error:
            self._end(None, None)
            return f"omlx-cache: {error}"
        listener = threading.Thread(
            target=httpd.serve_forever, args=(POLL_SECONDS,), name="omlx-cache-http"
        )
        listener.start()
        if model:
            store.labels[model_name(model)] = None
        store.service = {**store.service, "url": httpd.url}
        sys.stdout.write(f"Listening on {httpd.url}\n")
        sys.stdout.flush()
        if httpd.status is not None:
            _log.info("status page: %s/status", httpd.url)
        while not self._signals.count and responses.generation_available():
            time.sleep(POLL_SECONDS)
        is_healthy = self._signals.count > 0
        code = self._end(httpd, listener)
        return code if is_healthy else 1

    def _decoded(self, tokens: list[int], model: str) -> str | None:
        """Return tokens as text for `omlx-cache why`, None for a model that is not loaded."""
        provider = self._responses.model_provider
        key, tokenizer = provider.model_key, provider.tokenizer
        if key is None or tokenizer is None or model_name(key[0]) != model:
            return None
        # Images are named by numbers that no vocabulary has.
        return str(tokenizer.decode([token for token in tokens if token >= 0]))

    def _status(self) -> Routes | None:
        settings = self._store.settings
        if settings.status == "off" or not self._serving.has_status:
            return None
        return Routes(self._store.operations, settings.token, samples=True)

    def _end(self, httpd: HttpServer | None, listener: threading.Thread | None) -> int:
        """End the begun parts, within deadlines; returns the exit code."""

        def work(hurry: threading.Event) -> bool:
            try:
                if httpd is not None and listener is not None:
                    httpd.stop_listening()
                    listener.join()
                    _log.info(
                        "Draining: it finishes requests and writes pending pages. A second signal "
                        "leaves %d seconds for that, and a third ends the process.",
                        HURRY_SECONDS,
                    )
                    if not httpd.wait(self._serving.drain_seconds, hurry):
                        _log.warning(
                            "requests in flight are cut off; their chunk may take %d seconds more",
                            STOP_SECONDS,
                        )
                has_ended = self._responses.stop(STOP_SECONDS, hurry)
                if httpd is not None:
                    httpd.wait(LAST_WORDS_SECONDS, threading.Event())
            finally:
                is_clean = self._close()
            return is_clean and has_ended

        return 0 if attended(work, self._signals) else 1

    def _close(self) -> bool:
        """Write the pending pages, log which are on the disk, and return whether all are that the
        disk accepted."""
        deadline = time.monotonic() + CLOSE_SECONDS
        self._store.end_soon()
        self._store.flush(CLOSE_SECONDS - CLOSE_MARGIN_SECONDS)
        left = unwritten(self._store)
        is_clean = self._store.close(max(0.0, deadline - time.monotonic()))
        words = last_words(self._store, left, is_clean)
        _log.log(logging.INFO if words.complete else logging.WARNING, "%s", words.text)
        return is_clean


def _service(args: Any, serving: Serving, bound: socket.socket) -> dict[str, object]:
    """Return a server's description for `omlx-cache ps`; its `url` comes once it listens."""
    is_folder = args.model and Path(args.model).is_dir()
    return {
        "port": bound.getsockname()[1],
        "url": None,
        "model": args.model,
        "folder": str(Path(args.model).resolve()) if is_folder else None,
        "adapter": args.adapter_path,
        "draft_model": args.draft_model,
        "flags": sorted(serving.given),
    }


@lru_cache(maxsize=32)
def context_of(model: str) -> int:
    """Return how many tokens a model was made for, scaled positions included; reads one file."""
    folder = Path(model).expanduser()
    try:
        config, _ = PretrainedConfig.get_config_dict(
            folder if folder.is_dir() else model, local_files_only=True
        )
    except (OSError, ValueError, TypeError):
        return CONTEXT_TOKENS
    parts = [config, *(config[name] for name in _PARTS if isinstance(config.get(name), dict))]
    return max(map(_context, parts)) or CONTEXT_TOKENS


def _context(config: Mapping[str, Any]) -> int:
    named = max(_positive(config.get(name)) for name in _CONTEXT_FIELDS)
    most = named
    for name in _SCALINGS:
        scaling = config.get(name)
        if isinstance(scaling, dict):
            # Some configurations name the context before scaling, some the one after it.
            original = _positive(scaling.get("original_max_position_embeddings")) or named
            most = max(most, _positive(scaling.get("factor")) * original)
    return int(min(most, 1e12))


def _positive(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else 0.0  # type: ignore[operator, arg-type]
