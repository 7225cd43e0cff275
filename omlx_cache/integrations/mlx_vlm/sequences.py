"""One loaded model's sequences in a store: found, restored and stored in the classes of mlx-vlm.

A prompt's tokens do not say all: `with_media` and `marked` add images, sound and the tenant, as
mlx-vlm's own hash has them, and what that hash lacks.
"""

import hashlib
import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import mlx.core as mx
import numpy as np

from omlx_cache import reasons
from omlx_cache.identity.fingerprint import fingerprint_model
from omlx_cache.identity.namespace import version_of
from omlx_cache.integrations.lanes import Lane, restored_from, stand_in
from omlx_cache.requests.log import AskedRequest
from omlx_cache.restore.pending import Restored, missed
from omlx_cache.scope import Scopes
from omlx_cache.store import BlockStore
from omlx_cache_storage.keys import Tokens, as_tokens

WORDS = (
    *("audio", "image", "pixel", "sound", "speech", "video"),
    # Arguments that say how patches and frames lie: LFM2-VL's `spatial_shapes`, Mllama's
    # `aspect_ratio_ids`.
    *("aspect", "crop", "feature", "grid", "patch", "spatial", "tgt_sizes", "tile"),
)
COVERED = {"pixel_values", "pixel_values_videos", "input_features"}
"""Arguments that its server hashes. phi4mm hears `input_audio_embeds`; and patches in the same
order are another picture in a grid of another shape (`image_grid_thw`)."""


def marked(tokens: Sequence[int], extra_hash: int, nonce: bytes = b"") -> Tokens:
    """Return the keys' tokens of a prompt: its own; with a hash other than 0 the first one stands
    for both. So a prompt with an image is apart from its first token on: mlx-vlm restores no prefix
    that ends before one. The hash contains the tenant, who shares nothing. `nonce` makes a hash
    mean something in this process only."""
    keyed = as_tokens(list(tokens))
    if not extra_hash or not len(keyed):
        return keyed
    digest = hashlib.sha256(nonce)
    digest.update(extra_hash.to_bytes(16, "little", signed=True))
    digest.update(int(keyed[0]).to_bytes(8, "little", signed=True))
    replaced = np.array(keyed)
    replaced[0] = stand_in(digest.digest())
    return as_tokens(replaced.tolist())


def with_media(extra_hash: int, prompt_kwargs: Mapping[str, Any]) -> int:
    """Return a prompt's hash with what else of it was seen or heard, if there is any. Masks and
    positions of its tokens are left out: they are made from those."""
    embeds = prompt_kwargs.get("inputs_embeds")
    length = None if embeds is None else int(embeds.shape[1])
    apc = import_module("mlx_vlm.apc")
    for name, value in sorted(prompt_kwargs.items()):
        seen = any(word in name for word in WORDS) and not name.startswith(("_", "cached_"))
        if value is None or name in COVERED or not seen or _is_of_tokens(name, value, length):
            continue
        payload = apc._hash_payload(value)
        if payload is not None:
            extra_hash = apc._stable_int_hash(extra_hash, apc._hash_payload(name), payload)
    return int(extra_hash)


def _is_of_tokens(name: str, value: Any, length: int | None) -> bool:
    """A length alone says nothing: sound has 80 or 128 numbers a frame, and a prompt may have as
    many tokens."""
    named = "mask" in name or "position" in name
    return named and isinstance(value, mx.array) and value.shape[-1:] == (length,)


CACHES = "mlx_vlm.models.cache"


@dataclass(slots=True)
class UnderWay:
    """A request that was looked up, and what it was answered so far."""

    record: AskedRequest
    prompt: list[int]
    extra_hash: int
    answer: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KvForm:
    """How a generator packs KV caches: mlx-vlm's policy, None for not at all. Prompts shorter than
    `start` tokens stay dense. `refused` says why nothing can be kept."""

    policy: Any = None
    start: int = 0
    refused: str = ""

    def packs(self, prompt_length: int) -> bool:
        """True when a prompt that is computed alone has packed caches."""
        return self.policy is not None and prompt_length >= self.start

    def packed(self, caches: list[Any]) -> list[Any]:
        """Return a sequence's fresh caches, packed where the generator's batch would be."""
        module = import_module(CACHES)
        return [
            self._packed(module, cache, module.should_quantize_kv_layer(index, len(caches)))
            for index, cache in enumerate(caches)
        ]

    def _packed(self, module: Any, cache: Any, quantize: bool) -> Any:
        if isinstance(cache, module.CacheList):
            # A list's caches are packed in every layer.
            return module.CacheList(*(self._packed(module, c, True) for c in cache.caches))
        if not quantize or not isinstance(cache, module.KVCache):
            return cache
        policy = self.policy
        if policy.is_turboquant:
            turbo = import_module("mlx_vlm.turboquant").TurboQuantKVCache
            return turbo(bits=policy.bits, key_bits=policy.key.bits, value_bits=policy.value.bits)
        return module.QuantizedKVCache(group_size=policy.group_size, bits=int(policy.bits))


def form_of(generator: Any) -> KvForm:
    if generator.kv_bits is None:
        return KvForm()
    names = ("kv_key_bits", "kv_value_bits", "kv_key_scheme", "kv_value_scheme")
    try:
        policy = import_module("mlx_vlm.kv_quant").from_legacy(
            generator.kv_bits,
            generator.kv_quant_scheme,
            generator.kv_group_size,
            *(getattr(generator, name, None) for name in names),
        )
    except (ValueError, NotImplementedError) as error:
        return KvForm(refused=str(error))
    if not policy.is_homogeneous:
        return KvForm(refused="keys and values are packed by different schemes")
    return KvForm(policy, int(generator.quantized_kv_start) if policy.is_turboquant else 0)


class Sequences:
    """A language model's sequences, dense and packed. No method raises for what the cache, the disk
    or an unsupported model does. Use it on the thread that runs the model.

    `whole` is the model around it, whose other weights made the embeddings of images and sound.
    When it is not known, prompts with a hash other than 0 are kept for this object only.
    """

    def __init__(
        self,
        language_model: Any,
        store: BlockStore,
        form: KvForm,
        *,
        whole: Any = None,
        model_id: str | None = None,
    ) -> None:
        self.form = form
        self._store = store
        self._model = alive = weakref.ref(language_model)
        self._nonce = b"" if whole is not None else secrets.token_bytes(16)
        # Another version of its models may compute other bits, as another mlx-lm may.
        self._extra = {"mlx-vlm": version_of("mlx-vlm")}
        if whole is not None:
            self._extra["whole"] = fingerprint_model(whole)

        def fresh() -> list[Any]:
            return list(import_module(CACHES).make_prompt_cache(alive()))

        scopes = Scopes(language_model, store, model_id=model_id, make_cache=fresh)
        self._dense = self._packed = self._lane(scopes)
        if form.policy is not None:
            self._packed = self._lane(scopes.with_caches(lambda: form.packed(fresh())))

    def _lane(self, scopes: Scopes) -> Lane:
        return Lane([scopes.scope(extra=self._extra)])

    def of(self, language_model: Any, form: KvForm) -> bool:
        return self._model() is language_model and self.form == form

    @property
    def unsupported_reason(self) -> str | None:
        if self.form.refused:
            return f"{reasons.UNSUPPORTED}:{self.form.refused}"
        return self._packed.view.unsupported_reason

    @property
    def stateful(self) -> bool:
        """True for a model whose prefixes can be restored only where they were kept."""
        return self.unsupported_reason is None and not self._packed.view.trims

    def fresh(self) -> list[Any]:
        return self._dense.view.fresh()

    def restore(
        self, tokens: Sequence[int], extra_hash: int, useful: Callable[[int], bool]
    ) -> tuple[Restored, AskedRequest]:
        """Restore as much of a prompt as there is and as is `useful`; returns the request too."""
        lane, reason = self._for(len(tokens)), self.unsupported_reason
        record = self._store.requests.ask(lane.view.namespace, len(tokens))
        if reason is not None:
            record.restored(0, 0, 0.0, reason)
            return Restored([], missed(reason)), record
        keyed = marked(tokens, extra_hash, self._nonce)
        return restored_from([lane], keyed, record, useful=useful), record

    def stops(self, start: int, length: int, branch: int | None) -> list[int]:
        """Return where windows and state are wanted while a prompt of `length` tokens is computed
        from `start` on."""
        if not self.stateful:
            return []
        return self._for(length).view.stops(start, length, branch)

    def accepts(self, caches: Sequence[Any]) -> bool:
        return self._accepting(caches) is not None

    def store(self, tokens: Sequence[int], caches: Sequence[Any], extra_hash: int) -> bool:
        """Store a sequence's caches, which hold exactly `tokens`; copies the new blocks."""
        lane = self._accepting(caches)
        if lane is None:
            unsupported = self.unsupported_reason is not None
            self._store.counters.skip(
                reasons.UNSUPPORTED if unsupported else reasons.LAYOUT_CHANGED
            )
            return False
        stored = lane.store(marked(tokens, extra_hash, self._nonce), caches)
        return stored is not None and stored.result.tokens > 0

    def _for(self, prompt_length: int) -> Lane:
        return self._packed if self.form.packs(prompt_length) else self._dense

    def _accepting(self, caches: Sequence[Any]) -> Lane | None:
        if self.form.refused:
            return None
        return next((n for n in (self._packed, self._dense) if n.view.layout(caches)), None)
