"""A model on disk whose loading slows the disk of the process, from when a file says so."""

import json
from pathlib import Path

from .saved import make_model

_SOURCE = '''
"""qwen3; payloads of pages take {seconds} s each while there is a file {sign!r}."""

import os
import threading

from mlx_lm.models.qwen3 import Model, ModelArgs

from omlx_cache_storage.cold.disk import FileSystem

read_into, never = FileSystem.read_into, threading.Event()


def slowly(self, fd, offset, buffers):
    if os.path.exists({sign!r}):
        never.wait({seconds})
    return read_into(self, fd, offset, buffers)


FileSystem.read_into = slowly
'''


def make_slow_disk_model(directory: Path, sign: Path, seconds: float) -> Path:
    """Write a model for `--trust-remote-code`; the disk is slow for as long as `sign` exists."""
    make_model(directory, "qwen3")
    config = directory / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_file": "slow.py"}))
    (directory / "slow.py").write_text(_SOURCE.format(sign=str(sign), seconds=seconds))
    return directory
