"""What is no trace is told in words, soon, and in little memory."""

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from omlx_cache.simulate import traces
from omlx_cache.simulate.errors import TraceError
from omlx_cache.simulate.traces import read_traces

CHAT = {"timestamp": 2500, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}


def _simulate(path: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "omlx_cache_daemon", "simulate", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_packed_file_with_damage_inside_is_told_in_words(tmp_path: Path) -> None:
    lines = "".join(json.dumps(CHAT | {"timestamp": n}) + "\n" for n in range(500))
    packed = bytearray(gzip.compress(lines.encode()))
    for at in range(150, 200):
        packed[at] ^= 0x5A
    (tmp_path / "t.gz").write_bytes(packed)
    with pytest.raises(TraceError, match=r"t\.gz, after line"):
        read_traces([tmp_path / "t.gz"])


def test_a_small_packed_file_that_is_one_endless_line_is_not_unpacked_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_LINE_BYTES", 1 << 20)
    with gzip.open(tmp_path / "t.gz", "wb") as bomb:
        for _ in range(8):
            bomb.write(b" " * (1 << 20))
    with pytest.raises(TraceError, match="line 1: it is longer than any request"):
        read_traces([tmp_path / "t.gz"])


def test_a_time_beyond_all_clocks_is_told_in_words(tmp_path: Path) -> None:
    trace = tmp_path / "t"
    trace.write_text("".join(json.dumps(CHAT | {"timestamp": t}) + "\n" for t in (0, 1e308)))
    done = _simulate(trace)
    assert (done.returncode, done.stdout) == (1, "")
    assert "line 2: timestamp is '1e+308', not a time" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_may_come_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = json.dumps(CHAT) + "\n"
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert len(read_traces([pipe]).requests) == 1
    writer.join(10)


def test_neither_memory_nor_a_disk_serves_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "t"
    trace.write_text("".join(json.dumps(CHAT | {"timestamp": t}) + "\n" for t in (0, 5000)))
    done = _simulate(trace, "--hot", "0", "--json")
    assert done.returncode == 0, done.stderr
    for result in json.loads(done.stdout)["results"]:
        assert result["hit_tokens"] == result["optimum_tokens"] == 0
