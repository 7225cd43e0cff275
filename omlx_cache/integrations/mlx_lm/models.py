"""Loaded models: their names, and their scopes in a store, with the draft model's."""

import secrets
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
from huggingface_hub.errors import LocalEntryNotFoundError
from mlx_lm.models.cache import KVCache, QuantizedKVCache, make_prompt_cache

from omlx_cache.adapters.registry import blank_like
from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.integrations.lanes import model_name
from omlx_cache.prefix import PrefixCache
from omlx_cache.scope import Scopes
from omlx_cache.store import BlockStore
from omlx_cache_storage.errors import CacheError


class ModelSource(Protocol):
    """mlx-lm's ModelProvider, or LoadedModel."""

    @property
    def model_key(self) -> Any: ...
    @property
    def model(self) -> Any: ...
    @property
    def draft_model(self) -> Any: ...


class LoadedModel(NamedTuple):
    """A model that stays loaded, under the key that its requests name. A server that bounds its
    caches has mlx-lm's `max_kv_size`, or `make_cache`, which makes empty ones. `codec_policy` takes
    the place of the store's setting."""

    model_key: Any
    model: Any
    draft_model: Any = None
    max_kv_size: int | None = None
    make_cache: Callable[[], list[Any]] | None = None
    codec_policy: CodecPolicy | None = None


class ModelCaches(NamedTuple):
    """The scopes of a model, and of its draft model behind it. `model` is a weak reference, so that
    a server which loads another model gets this one's memory back."""

    kinds: Sequence[Scopes]
    model: Any


class CannotLoad(CacheError):
    """A model, an adapter or a draft model is not there, or is none."""


def load_default(provider: Any) -> None:
    """Load the model of a provider's flags; raises CannotLoad, in one line."""
    flags = provider.cli_args
    try:
        for place in filter(None, (flags.model, flags.adapter_path, flags.draft_model)):
            is_path = place[0] in "./~" or place.count("/") > 1
            folder = Path(place).expanduser()
            if is_path and not folder.exists():
                # mlx-lm would look for it on the hub.
                raise FileNotFoundError(f"there is no folder {place}")
            is_model = place != flags.adapter_path
            if is_model and folder.is_dir() and not (folder / "config.json").exists():
                raise FileNotFoundError(f"{place} is no model folder: it has no config.json")
        provider.load_default()
    except Exception as error:
        why = first_line(error)
        if isinstance(error, LocalEntryNotFoundError):
            reached = "there is no such folder here, and the Hugging Face hub cannot be reached"
            why = f"{reached} ({why.removeprefix('Got: ')})"
        adapter = f" with adapter {flags.adapter_path}" if flags.adapter_path else ""
        draft = f" with draft model {flags.draft_model}" if flags.draft_model else ""
        raise CannotLoad(f"cannot load {flags.model}{adapter}{draft}: {why}") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def served_as(key: Any, name: object) -> bool:
    """True when a request that names this model, or none, means the one of a provider's key."""
    path = str(key[0] if isinstance(key, tuple) else key)
    return name in (None, "default_model", path, model_name(path))


def served(
    model: Any,
    model_path: str | None,
    adapter_path: str | None = None,
    max_kv_size: int | None = None,
) -> dict[str, Any]:
    """Return what identifies a model, as arguments of `Scopes` and `PrefixCache`; does not keep it
    alive."""
    alive = weakref.ref(model)
    return {
        "model_id": model_name(model_path),
        "adapter": adapter_path,
        "make_cache": lambda: make_prompt_cache(alive(), max_kv_size),
    }


def caches_of(source: ModelSource, store: BlockStore) -> ModelCaches:
    """Return the scopes of the loaded model; evaluates samples of the weights."""
    parts = source.model_key if isinstance(source.model_key, tuple) else (source.model_key,)
    path, adapter, draft_path = (*(str(p) if p else None for p in parts), None, None, None)[:3]
    bound = getattr(source, "max_kv_size", None)
    described = served(source.model, path, adapter, bound)
    policy = None
    if isinstance(source, LoadedModel):
        described["make_cache"] = source.make_cache or described["make_cache"]
        policy = source.codec_policy
    kinds = [Scopes(source.model, store, codec_policy=policy, **described)]
    draft = source.draft_model
    if draft is not None:
        kinds.append(Scopes(draft, store, **served(draft, draft_path, None, bound)))
    return ModelCaches(kinds, weakref.ref(source.model))


def cache_of(
    model: Any, store: BlockStore, model_path: str | None, adapter_path: str | None = None
) -> PrefixCache:
    """Return a prefix cache whose pages the server finds; does not keep the model alive."""
    return PrefixCache(model, store, **served(model, model_path, adapter_path))


class _Unknown:
    """Stands for a model that was never shown: nothing else has its fingerprint."""

    def __init__(self) -> None:
        self._nonce = mx.array(list(secrets.token_bytes(32)), dtype=mx.uint8)

    def parameters(self) -> dict[str, Any]:
        return {"nonce": self._nonce}


def unknown_model(store: BlockStore, prompt_cache: Sequence[Any]) -> ModelCaches:
    """Return the scopes of a key without a model, with the layout of a first insert, as it was
    before its caches were packed. Only they find its pages: without weights there is no identity
    that would make them safe to share. Raises UnsupportedCache for foreign classes."""
    template = blank_like(prompt_cache)
    # mlx-lm packs all of them at once: beside a dense one, packed caches are the model's own.
    if not any(type(cache) is KVCache for cache in template):
        template = [KVCache() if type(c) is QuantizedKVCache else c for c in template]
    stand_in = _Unknown()
    cache = Scopes(stand_in, store, make_cache=lambda: blank_like(template))
    return ModelCaches([cache], lambda: stand_in)
