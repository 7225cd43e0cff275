"""A store that serves its own status: one call, ended with the store, alive without it."""

import gc
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kit.status import get
from kit.storage import Story, commit_to_disk, open_store
from omlx_cache_storage.errors import CacheError

OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}


def test_one_call_serves_what_the_store_is(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        server = store.serve_status()
        commit_to_disk(store, Story("llama"), 1, 2, 3)
        families = {one.name: one for one in parse_text(get(server, "/metrics")[2].decode())}
        pages = {
            sample.labels["tier"]: sample.value for sample in families["omlx_cache_pages"].samples
        }
        assert pages == {"hot": 3, "cold": 3}
        (state,) = (s for s in families["omlx_cache_cold_state"].samples if s.value == 1)
        assert state.labels["state"] == "ok"
        (info,) = families["omlx_cache_store_info"].samples
        assert info.labels["cold_dir"] == str(tmp_path)
        overview = json.loads(get(server, "/status/overview.json")[2])
        (process,) = overview["processes"]
        assert (process["title"], process["role"], process["error"]) == ("store", "store", None)
        assert process["stats"]["hot"]["pages"] == 3
        batches = json.loads(get(server, "/status/events.json?kv=1&after=0")[2])["batches"]
        told = {(one["type"], one["medium"]) for batch in batches for one in batch["events"]}
        assert told >= {("BlockStored", "CPU"), ("BlockStored", "STORAGE")}


def test_the_text_of_a_store_is_what_its_port_gives_in_both_formats(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        server = store.serve_status()
        text = {one.name for one in parse_text(store.metrics())}
        assert text == {one.name for one in parse_text(get(server, "/metrics")[2].decode())}
        status, headers, body = get(server, "/metrics", OPENMETRICS)
        assert status == 200
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        found = {one.name for one in parse_openmetrics(body.decode())}
        assert len(found) == len(text) > 50


@pytest.mark.skipif(shutil.which("promtool") is None, reason="apt-get install prometheus")
def test_promtool_finds_nothing_to_say(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        checked = subprocess.run(
            ["promtool", "check", "metrics"],
            input=store.metrics(),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_it_ends_with_the_store(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    server = store.serve_status(token="secret-of-a-test")
    assert get(server, "/metrics")[0] == 401
    store.close()
    with pytest.raises(OSError, match="refused"):
        get(server, "/metrics")
    with pytest.raises(CacheError, match="closed"):
        store.serve_status()


def test_a_lost_store_is_not_kept_alive_by_its_status(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    server = store.serve_status()
    assert get(server, "/metrics")[0] == 200
    del store
    gc.collect()
    for name in ("omlx-cache-status", "omlx-cache-upkeep", "omlx-cache-closing"):
        for thread in [t for t in threading.enumerate() if t.name == name]:
            thread.join(30)
    with pytest.raises(OSError, match="refused"):
        get(server, "/metrics")
