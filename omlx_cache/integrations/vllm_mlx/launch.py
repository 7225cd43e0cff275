"""`omlx-cache run vllm-mlx`: its own command, with this cache in each scheduler that it makes."""

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from omlx_cache.integrations.vllm_mlx.install import install
from omlx_cache.store import BlockStore

_log = logging.getLogger(__name__)

NAME = "vllm-mlx"
PACKAGE = "vllm-mlx"
TESTED = ">=0.6.0,<0.7"

BATCHING = "--continuous-batching"
HELP = ("-h", "--help")
SIMPLE = (
    f"vllm-mlx serve without {BATCHING} has one request at a time and keeps no prefixes that this "
    f"cache could serve: add {BATCHING}"
)


def place(open_store: Callable[[], BlockStore]) -> None:
    """Have every scheduler that is made from now on use this cache, as long as the server's prefix
    cache is not switched off: the scheduler names its cache's class itself, and has no argument
    for another. Call it once."""
    _after_init(import_module("vllm_mlx.scheduler").Scheduler, _into_scheduler, open_store)
    try:
        images = import_module("vllm_mlx.mllm_batch_generator")
    except ImportError as error:
        _log.info("models with images keep their own cache: %s", error)
        return
    _after_init(images.MLLMBatchGenerator, _into_generator, open_store)


def main(arguments: Sequence[str]) -> None:
    """Run vllm-mlx's own command; raises SystemExit as it does, and for a mode without batches."""
    flags = [argument.split("=")[0] for argument in arguments]
    if "serve" in flags[:1] and not {BATCHING, "--models-config", *HELP} & set(flags):
        raise SystemExit(SIMPLE)
    sys.argv = [NAME, *arguments]
    import_module("vllm_mlx.cli").main()


Opens = Callable[[], BlockStore]


def _after_init(kind: Any, put: Callable[[Any, Opens], None], open_store: Opens) -> None:
    own = kind.__init__

    @functools.wraps(own)
    def init(self: Any, *args: Any, **options: Any) -> None:
        own(self, *args, **options)
        put(self, open_store)

    kind.__init__ = init


def _into_scheduler(scheduler: Any, open_store: Opens) -> None:
    if scheduler.config.enable_prefix_cache:
        install(scheduler, open_store())
    else:
        _log.warning("the server's prefix cache is switched off, and this one with it")


def _into_generator(generator: Any, open_store: Opens) -> None:
    if generator.prefix_cache is not None:
        install(generator, open_store())
