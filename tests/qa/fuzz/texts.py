"""What people write: settings in an environment, codecs by name, files of prompts."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from omlx_cache import CacheSettings
from omlx_cache.codecs import codec_named
from omlx_cache.settings.names import SETTING_NAMES, ConfigError
from omlx_cache.settings.sizes import format_size, parse_size
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.warming import read_prompts

from .files import AFFINE
from .mutate import NUMBERS, spoil_bytes, spoil_text, spoil_value
from .run import MIB, Target, refused


def one_identity(data: bytes) -> bool:
    text = data.decode("utf-8", "surrogateescape")
    try:
        codec = codec_named(text)
    except ValueError as error:
        return refused(error)
    assert codec.identity == text
    return True


def vary_identity(rng: Random, sample: bytes) -> bytes:
    text = sample.decode()
    if rng.random() < 0.3:
        values = (*NUMBERS, 64, 128, 4, 3, 17, 2048, 2047, "x")
        name = rng.choice(("affine", "turbo-mse", "dense", "other"))
        keys = rng.sample(("bits", "dim", "group", "norm", "rotation", "seed"), rng.randrange(7))
        # Few of them are costly: tables for many channels are made before they are compared.
        pairs = ",".join(f"{key}={rng.choice(values)}" for key in sorted(keys))
        return f"{name}/{rng.choice((1, 1, 2, 0))}({pairs})".encode()
    return spoil_text(rng, text).encode("utf-8", "surrogatepass")


def identity_samples() -> list[bytes]:
    turbo = (f"turbo-mse/1(bits={bits},dim=64,norm=corrected,rotation=hadamard,seed=0)#codebook="
             f"{'0' * 16},signs={'0' * 16}" for bits in (2, 4))  # fmt: skip
    return [text.encode() for text in ("dense/1", AFFINE, *turbo)]


IDENTITY = Target(
    "identity", identity_samples, vary_identity, one_identity, constant=64 * MIB, seconds=20.0
)


SETTING_VALUES = ("auto", "4GiB", "1.5 GiB", "512MB", "1048576", "16", "0.5", "true", "off", "zstd",
          "turbo4", "~/x", "/tmp/x")  # fmt: skip


def one_setting(data: bytes) -> bool:
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


def vary_setting(rng: Random, sample: bytes) -> bytes:
    value = rng.choice(SETTING_VALUES)
    if rng.random() < 0.7:
        value = spoil_text(rng, value)
    if rng.random() < 0.3:
        value = rng.choice(("", "-", "0.", "1e")) + str(rng.choice(NUMBERS)) + rng.choice(
            ("", "B", "GiB", " PB", "e9", "g"))  # fmt: skip
    return f"{rng.choice(SETTING_NAMES)}={value}".encode("utf-8", "surrogatepass")


def setting_samples() -> list[bytes]:
    return [f"{name}={value}".encode() for name in SETTING_NAMES for value in SETTING_VALUES]


SETTINGS = Target(
    "settings", setting_samples, vary_setting, one_setting, constant=8 * MIB, factor=64, share=0.1
)


def one_prompt_file(data: bytes) -> bool:
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(data)
        file.flush()
        try:
            prompts = read_prompts(Path(file.name))
        except CommandError as error:
            return refused(error)
    for prompt in prompts:
        assert prompt.text or prompt.messages
    return bool(prompts)


def vary_prompts(rng: Random, sample: bytes) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice((b"[", b'{"a":', b"9")) * rng.choice((1000, 100_000)) + b"\n"
    lines = [spoil_value(rng, json.loads(line)) for line in sample.splitlines()]
    text = "\n".join(map(json.dumps, lines))
    return spoil_bytes(rng, text.encode()) if kind > 0.9 else text.encode()


def prompt_samples() -> list[bytes]:
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]}
    return ["\n".join(map(json.dumps, (chat, {"prompt": "x"}, "x", chat["messages"]))).encode()]


PROMPTS = Target(
    "prompts",
    prompt_samples,
    vary_prompts,
    one_prompt_file,
    constant=8 * MIB,
    factor=100,
    share=0.2,
)
