"""Which models a client may ask this server for: what `/v1/models` answers."""

import logging
from collections.abc import Iterator
from typing import Any

from huggingface_hub import CacheNotFound, scan_cache_dir

_log = logging.getLogger(__name__)

DEFAULT = "default_model"
"""What mlx-lm calls the model of the command line, with its adapter."""

_FILES = {"config.json", "model.safetensors.index.json", "tokenizer_config.json"}


def offered(provider: Any) -> Iterator[str]:
    """Yield what a client may send as `model`: first the model of the command line, then the one
    that is loaded, then those in the hub's cache on this machine. None twice."""
    said: set[str] = set()
    for name in _names(provider):
        if name not in said:
            said.add(name)
            yield name


def _names(provider: Any) -> Iterator[str]:
    args, key = provider.cli_args, provider.model_key
    if args.model:
        # Under its own name it would be loaded without the adapter.
        yield DEFAULT if args.adapter_path else str(args.model)
    if key is not None and key[0] and not (args.adapter_path and key[0] == args.model):
        yield str(key[0])
    yield from _in_the_hub_cache()


def _in_the_hub_cache() -> Iterator[str]:
    """Yield the models that were fetched from the hub and look as if mlx-lm could load them."""
    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    except (OSError, ValueError) as error:
        _log.warning("the hub's cache cannot be read: %s", error)
        return
    for repository in sorted(repositories, key=lambda found: str(found.repo_id)):
        revision = repository.refs.get("main")
        if repository.repo_type != "model" or revision is None:
            continue
        if {file.file_path.name for file in revision.files} >= _FILES:
            yield str(repository.repo_id)
