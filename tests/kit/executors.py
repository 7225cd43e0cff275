"""The ways of a GPU, on the CPU back end: with memory of the device's own, or with the host's."""

import pytest

from omlx_cache.arrays import mlxio
from omlx_cache.pages import cut, encoding
from omlx_cache.restore import queue, reading

EXECUTORS = ("host", "unified", "device")


def compute_on(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go the way of a GPU that shares the host's memory, `unified`, or of a `device` that does
    not; nothing changes for `host`."""
    if executor != "host":
        for module in (cut, encoding, queue, reading):
            monkeypatch.setattr(module, "on_host", lambda: False)
    if executor == "device":
        for module in (encoding, mlxio, reading):
            monkeypatch.setattr(module, "has_memory_of_its_own", lambda: True)
