"""Settings as an environment gives them: sizes, and every other value."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from omlx_cache import CacheSettings
from omlx_cache.settings.names import SETTING_NAMES, ConfigError
from omlx_cache.settings.sizes import format_size, parse_size

from .mutate import NUMBERS, spoil_text
from .target import MIB, Target, refused

VALUES = ("auto", "4GiB", "1.5 GiB", "512MB", "1048576", "16", "0.5", "true", "off", "zstd",
          "turbo4", "~/x", "/tmp/x")  # fmt: skip


def one(data: bytes) -> bool:
    """`NAME=value`: a size alone, and the setting of that name."""
    text = data.decode("utf-8", "surrogateescape")
    name, _, value = text.partition("=")
    try:
        size = parse_size(value)
        assert 0 <= size < 2**63
        assert parse_size(str(size)) == size
        format_size(size)
    except ValueError as error:
        refused(error)
    if name not in SETTING_NAMES or "\0" in value:
        return False
    with _environment(f"OMLX_CACHE_{name.upper()}", value):
        try:
            settings = CacheSettings()
        except ConfigError as error:
            return refused(error, len(data))
    again = CacheSettings(**{name: getattr(settings, name)})
    assert getattr(again, name) == getattr(settings, name)
    settings.sources()
    settings.notes()
    return True


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def vary(rng: Random, sample: bytes) -> bytes:
    value = rng.choice(VALUES)
    if rng.random() < 0.7:
        value = spoil_text(rng, value)
    if rng.random() < 0.3:
        value = rng.choice(("", "-", "0.", "1e")) + str(rng.choice(NUMBERS)) + rng.choice(
            ("", "B", "GiB", " PB", "e9", "g"))  # fmt: skip
    return f"{rng.choice(SETTING_NAMES)}={value}".encode("utf-8", "surrogatepass")


def samples() -> list[bytes]:
    return [f"{name}={value}".encode() for name in SETTING_NAMES for value in VALUES]


TARGET = Target("settings", samples, vary, one, constant=8 * MIB, factor=64, share=0.1)
