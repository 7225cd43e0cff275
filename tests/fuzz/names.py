"""File names: what parses is the name that the format would give, and lies in one shard."""

from random import Random

from omlx_cache_storage.cold.small_files import is_leftover
from omlx_cache_storage.format.names import format_name, name_of, parse_name, shard_of

from . import pages
from .mutate import spoil_text
from .target import KIB, Target


def one(data: bytes) -> bool:
    # A directory entry is bytes, which Python decodes so.
    text = data.decode("utf-8", "surrogateescape")
    is_leftover(text, 0)
    name = parse_name(text)
    if name is None:
        return False
    assert format_name(name) == text
    assert parse_name(format_name(name)) == name
    assert len(shard_of(name.id.key)) == 2
    assert len(text) <= 255, "a name that no disk takes"
    return True


def vary(rng: Random, sample: bytes) -> bytes:
    text = sample.decode("utf-8", "surrogateescape")
    if rng.random() < 0.5:
        parts = text.split("-")
        at = rng.randrange(len(parts))
        parts[at] = spoil_text(rng, parts[at])
        if rng.random() < 0.2:
            rng.shuffle(parts)
        text = "-".join(parts)
    else:
        text = spoil_text(rng, text)
    return text.encode("utf-8", "surrogatepass")


def samples() -> list[bytes]:
    kinds = (pages.plain(), pages.snapshot(), pages.window())
    tail = pages.meta("paged", [], tail=True, position=10**15 - 1, held=7)
    return [format_name(name_of(kind)).encode() for kind in (*kinds, tail)] + [b".tmp-1-2-3"]


TARGET = Target("names", samples, vary, one, constant=64 * KIB, factor=8)
