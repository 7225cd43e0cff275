"""A file of prompts to warm: JSON Lines that people write, read before anything is computed."""

import json
import tempfile
from pathlib import Path
from random import Random

from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.warming import read_prompts

from .mutate import spoil_bytes, spoil_value
from .target import MIB, Target, refused


def one(data: bytes) -> bool:
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


def vary(rng: Random, sample: bytes) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice((b"[", b'{"a":', b"9")) * rng.choice((1000, 100_000)) + b"\n"
    lines = [spoil_value(rng, json.loads(line)) for line in sample.splitlines()]
    text = "\n".join(map(json.dumps, lines))
    return spoil_bytes(rng, text.encode()) if kind > 0.9 else text.encode()


def samples() -> list[bytes]:
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]}
    return ["\n".join(map(json.dumps, (chat, {"prompt": "x"}, "x", chat["messages"]))).encode()]


TARGET = Target("prompts", samples, vary, one, constant=8 * MIB, factor=100, share=0.2)
