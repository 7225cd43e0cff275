"""A store is found from every session of its user, whatever the two environments say."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.children import embedded_stores
from omlx_cache.control.socket_paths import meeting_place, search_places

from .conftest import Start

_EMBED = """
import sys
from omlx_cache import BlockStore, CacheSettings
with BlockStore(CacheSettings(hot_bytes="1MiB", hot_cache_only=True), name="embedded"):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def login(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which no variable says where sockets lie."""
    named = ("OMLX_CACHE_RUNTIME_DIR", "XDG_RUNTIME_DIR")
    return {name: value for name, value in environment.items() if name not in named}


@pytest.fixture
def start(login: dict[str, str]) -> Iterator[Start]:
    """Starts a store with the variables given, and waits until it listens."""
    with embedded_stores(_EMBED) as run:
        yield lambda **variables: run({**login, **variables})


def found(login: dict[str, str], **variables: str) -> dict[int, Any]:
    """What `omlx-cache ps` finds in a session with these variables, by process."""
    done = subprocess.run(
        [sys.executable, "-m", "omlx_cache_daemon", "ps", "--format", "json"],
        env={**login, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (0, 69), done.stderr
    return {info["pid"]: info for info in json.loads(done.stdout or "[]")}


def links_of(process: "subprocess.Popen[str]") -> list[Path]:
    return list(meeting_place().glob(f"{process.pid}-*"))


def test_each_session_finds_the_stores_of_the_others(
    start: Start, login: dict[str, str], runtime_dir: Path
) -> None:
    sessions: list[dict[str, str]] = [{}]
    for name in ("ssh", "desktop"):
        (runtime_dir / name).mkdir(mode=0o700)
        sessions.append({"XDG_RUNTIME_DIR": str(runtime_dir / name)})
    stores = [start(**variables) for variables in sessions]
    for variables in sessions:
        seen = found(login, **variables)
        assert {store.pid for store in stores} <= set(seen)
    own = runtime_dir / "ssh" / "omlx-cache" / f"{stores[1].pid}-0.sock"
    assert [found(login, **each)[stores[1].pid]["socket"] for each in sessions] == [str(own)] * 3


def test_a_store_that_ends_leaves_no_link(start: Start, runtime_dir: Path) -> None:
    store = start(XDG_RUNTIME_DIR=str(runtime_dir))
    assert len(links_of(store)) == 1
    store.communicate(timeout=60)
    assert links_of(store) == []


@pytest.mark.nightly
def test_the_link_of_a_killed_store_is_nobody_and_goes_with_the_next_start(
    start: Start, login: dict[str, str], runtime_dir: Path
) -> None:
    store = start(XDG_RUNTIME_DIR=str(runtime_dir))
    store.send_signal(signal.SIGKILL)
    store.wait(60)
    assert len(links_of(store)) == 1
    assert store.pid not in found(login)
    start(XDG_RUNTIME_DIR=str(runtime_dir))
    assert links_of(store) == []


@pytest.mark.nightly
def test_a_directory_that_is_named_is_the_only_one(
    start: Start, login: dict[str, str], runtime_dir: Path
) -> None:
    store = start(OMLX_CACHE_RUNTIME_DIR=str(runtime_dir))
    assert store.pid not in found(login)
    assert links_of(store) == []
    elsewhere = start(XDG_RUNTIME_DIR=str(runtime_dir))
    assert elsewhere.pid not in found(login, OMLX_CACHE_RUNTIME_DIR=str(runtime_dir))


def test_a_client_without_variables_looks_where_login_sessions_listen() -> None:
    session = Path(f"/run/user/{os.geteuid()}/omlx-cache")
    assert search_places({}, "linux") == [meeting_place(), session]
    standard = {"XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"}
    assert search_places(standard, "linux") == [session, meeting_place()]
