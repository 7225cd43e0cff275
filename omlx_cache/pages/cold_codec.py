"""What the writer does to a page before it goes to the disk: the `cold_codec` setting."""

from collections.abc import Callable
from dataclasses import replace

from omlx_cache.arrays.mlxio import has_memory_of_its_own, host_copy
from omlx_cache.settings import ConfigError
from omlx_cache_storage.format import planes
from omlx_cache_storage.format.wrapping import wrap
from omlx_cache_storage.page import Page


def cold_encoder(name: str, min_quantize_tokens: int) -> Callable[[Page], Page] | None:
    """Return the function that the writer's thread applies, None for pages as they are.

    Raises ConfigError for zstd when none is installed. A lossy codec imports MLX and encodes on the
    writer's thread, one page at a time; pages that are encoded already are left alone.
    """
    if name == "dense":
        return _in_host_memory if has_memory_of_its_own() else None
    if name == "zstd":
        if not planes.available():
            raise ConfigError(
                "OMLX_CACHE_COLD_CODEC=zstd needs the extra: pip install 'omlx-cache[zstd]'"
            )
        return _wrap_of_copy if has_memory_of_its_own() else wrap
    from omlx_cache.codecs import CodecPolicy, check_codec_name
    from omlx_cache.pages.encoding import codecs_for, encode_page

    policy = CodecPolicy(check_codec_name(name), min_quantize_tokens=min_quantize_tokens)
    apart = has_memory_of_its_own()

    def encode(page: Page) -> Page:
        short = page.meta.position < min_quantize_tokens
        made = page if short else encode_page(page, codecs_for(page.meta, policy))
        return _in_host_memory(page) if apart and made is page else made

    return encode


def _in_host_memory(page: Page) -> Page:
    """Return the page with a payload that the host may read: to read the one that restores use
    would move it out of the device's memory, and the next restore would wait for it."""
    return replace(page, payload=host_copy(page.payload))


def _wrap_of_copy(page: Page) -> Page:
    return wrap(_in_host_memory(page))
