"""mlx-lm's versions: which this works with, and what differs between them. It is imported inside
the functions only: caches of other packages are kept where it cannot be imported."""

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from omlx_cache.identity.namespace import version_of
from omlx_cache_storage.errors import CacheError

TESTED = ">=0.31.3,<0.33"
"""The versions that the tests ran with: 0.31.3, 0.32.0, 0.32.1 and 0.32.2."""
_FIRST, _BEYOND = (0, 31, 3), (0, 33)

_CACHES = "mlx_lm.models.cache"


class UntestedVersion(CacheError, RuntimeError):
    """mlx-lm is missing, or in an untested version; the text says what to do."""


def installed() -> str:
    loaded = getattr(sys.modules.get("mlx_lm"), "__version__", None)
    return loaded if isinstance(loaded, str) else version_of("mlx-lm")


def check(what: str) -> None:
    found = installed()
    if found and _numbers(found) >= _FIRST and _numbers(found)[:2] < _BEYOND:
        return
    here = f"mlx-lm {found} is installed" if found else "mlx-lm is not installed"
    raise UntestedVersion(
        f"{what} is tested with mlx-lm {TESTED}, and {here}: pip install 'mlx-lm{TESTED}'"
    )


def cache_maker(model: Any) -> Callable[[], list[Any]]:
    """Return what makes mlx-lm's caches of a model; raises ImportError, which says what to do,
    without mlx-lm."""
    try:
        caches = import_module(_CACHES)
    except ImportError as error:
        raise ImportError(
            f"mlx-lm makes a model's caches, and it cannot be imported ({error}): "
            f"pip install 'mlx-lm{TESTED}', or give make_cache= a function that returns them"
        ) from error
    return partial(caches.make_prompt_cache, model)


def is_cache(cache: Any, *names: str) -> bool:
    """True for an instance of one of mlx-lm's cache classes; imports nothing."""
    caches = sys.modules.get(_CACHES)
    return caches is not None and isinstance(cache, tuple(getattr(caches, n) for n in names))


def quantized(prompt_cache: list[Any], group_size: int, bits: int) -> list[Any]:
    return [
        import_module(_CACHES).QuantizedKVCache(group_size, bits)
        if is_cache(cache, "KVCache")
        else cache
        for cache in prompt_cache
    ]


def is_old() -> bool:
    """True before 0.32; False where there is none. Before 0.32 a ChunkedKVCache drops tokens by the
    length of its buffer, so that its tokens depend on when it grew; a batch computes a row
    otherwise than alone, unless `old_batches` helps; and the server cannot pack caches."""
    return () < _numbers(installed()) < (0, 32)


def stop_options(stop_sequences: Any) -> dict[str, list[Any]]:
    if stop_sequences is None:
        return {}
    return {"state_machines" if is_old() else "stop_sequences": [stop_sequences]}


def has_images(messages: Any) -> bool:
    """True for a chat with images that mlx-lm's server looks at: since 0.32.1."""
    server: Any = import_module("mlx_lm.server")
    return _sees_images(server) and any(server._image_parts(messages))


def prompt_parts(parts: Sequence[Any]) -> tuple[Any, ...]:
    """Return what `ResponseGenerator._tokenize` gives, its images last: None before 0.32.1."""
    return (*parts, None)[:5]


def as_prompt_parts(parts: Sequence[Any]) -> tuple[Any, ...]:
    """Return such parts as `_tokenize` has to give them: without images before 0.32.1."""
    return tuple(parts if _sees_images(import_module("mlx_lm.server")) else parts[:4])


def context_fields(machine: Any, state: str) -> dict[str, Any]:
    """Return the fields of a `GenerationContext` for `_make_state_machine`'s second part and a
    prompt's initial state. Before 0.32 that part is the texts that are looked for."""
    return {"sequences": machine} if is_old() else {"text_sm": machine, "initial_state": state}


def _sees_images(server: Any) -> bool:
    return hasattr(server, "_image_parts")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))
