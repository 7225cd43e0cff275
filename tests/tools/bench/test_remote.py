"""Measuring remote stores: what is compared, and a network that is far away."""

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from omlx_cache.tools.bench import remote
from omlx_cache.tools.bench.delay_line import DelayLine


def test_each_byte_comes_later_and_in_order() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo() -> None:
            client, _ = listener.accept()
            with client:
                while data := client.recv(65536):
                    client.sendall(data)

        thread = threading.Thread(target=echo)
        thread.start()
        with (
            DelayLine(listener.getsockname()[:2], 0.05) as line,
            socket.create_connection(("127.0.0.1", line.port)) as client,
        ):
            client.settimeout(30)
            sent = bytes(range(256)) * 2000
            began = time.monotonic()
            client.sendall(sent)
            came = b""
            while len(came) < len(sent):
                came += client.recv(65536)
            assert time.monotonic() - began >= 0.1
            assert came == sent
        thread.join(30)
        assert not thread.is_alive()


_MEASURE = """
import json, sys
from pathlib import Path
from omlx_cache.tools.bench import remote
from omlx_cache.tools.bench.remote_report import document, markdown

work = remote.Work(1 << 16, 3, runs=1, lookup_runs=1, delays=(0.0, 0.01))
results = remote.measure_remote(Path(sys.argv[1]), lambda what: None, work)
assert "remote restore" in markdown(results, {"machine": "this"})
print(json.dumps(document(results, {})))
"""


def test_restores_stand_beside_raw_reads_and_look_ups_say_their_phases(tmp_path: Path) -> None:
    # In a process of its own: a client of object stores keeps its threads until the end.
    command = [sys.executable, "-c", _MEASURE, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    kinds = {"redis", "file"} if shutil.which("redis-server") else {"file"}
    assert set(found["lookups"]) == kinds
    for one in (one for lookups in found["lookups"].values() for one in lookups):
        assert 1 <= one["phases"] <= 3
        assert one["found"] == remote.LOOKUP_TOKENS // remote.BLOCK
        assert one["seconds"] >= 2 * one["phases"] * one["delay_seconds"]
    assert all(row["ours"] > 0 and row["other"] > 0 and row["limit"] for row in found["rows"])
