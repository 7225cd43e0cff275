"""In which classes mlx-vlm's generator keeps a sequence: the model's own, or packed ones."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

CACHES = "mlx_vlm.models.cache"


@dataclass(frozen=True, slots=True)
class KvForm:
    """How a generator packs KV caches: mlx-vlm's policy, None for not at all. Shorter prompts than
    `start` tokens stay dense. `refused` says why nothing can be kept."""

    policy: Any = None
    start: int = 0
    refused: str = ""

    def packs(self, prompt_length: int) -> bool:
        """True when a prompt of so many tokens, computed alone, has packed caches."""
        return self.policy is not None and prompt_length >= self.start

    def packed(self, caches: list[Any]) -> list[Any]:
        """Return fresh caches of one sequence, packed where the generator's batch would be."""
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
    """Return the form of the caches that a BatchGenerator will make; does not raise."""
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
