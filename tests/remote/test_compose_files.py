"""The compose files for stores: their flags start real servers, and their users may do what a
machine does, and no more."""

import hashlib
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from kit.remote.processes import NotYet, ServerProcess, eventually, free_port
from kit.remote.redis_servers import program
from kit.storage import Story
from omlx_cache_storage.page import Placed
from omlx_cache_storage.remote.address import parse_address
from omlx_cache_storage.remote.engine import RemoteError, RemoteOptions
from omlx_cache_storage.remote.tier import RemoteTier, open_engine

FOLDER = Path(__file__).parents[2] / "daemon" / "remote"
PASSWORD = "a password of this test"
CLUSTER_PORTS = ("7001", "7002", "7003")


def _compose(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return document


def _users(name: str) -> str:
    """Return the users that a file's comment tells people to write, with this test's password."""
    lines = [line.strip("# ") for line in (FOLDER / name).read_text().splitlines()]
    digest = hashlib.sha256(PASSWORD.encode()).hexdigest()
    users = [line for line in lines if line.startswith("user ")]
    assert users
    return "\n".join(users).replace("#HASH", f"#{digest}") + "\n"


def _flags(command: list[str], acl: Path, home: Path, port: int) -> list[str]:
    """Return a service's own flags, with the places of this machine."""
    assert command[0] == "valkey-server"
    given = [str(acl) if one == "/run/secrets/users.acl" else one for one in command[1:]]
    if "--port" in given:
        given[given.index("--port") + 1] = str(port)
    else:
        given += ["--port", str(port)]
    return [program("server"), *given, "--bind", "127.0.0.1", "--dir", str(home)]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    running: list[ServerProcess] = []

    def start(service: dict[str, Any], users: str, name: str, port: int) -> redis.Redis:
        home = tmp_path / name
        home.mkdir()
        acl = home / "users.acl"
        acl.write_text(users)
        process = ServerProcess(_flags(service["command"], acl, home, port), home / "log")
        running.append(process)
        process.begin()
        client = redis.Redis(port=port, username="omlx", password=PASSWORD)

        def answers() -> None:
            process.check()
            try:
                client.ping()
            except redis.ConnectionError as error:
                raise NotYet from error

        eventually(answers, "starting a server of a compose file")
        return client

    yield start
    for process in running:
        process.kill()


def _serves_a_machine(url: str) -> None:
    options = RemoteOptions(url, "cpu", password=PASSWORD, lookup_seconds=30, read_seconds=30)
    address = parse_address(url)
    story = Story()
    tiers = [
        RemoteTier(open_engine(address, options), options, engine_name="redis", where="here")
        for _ in range(2)
    ]
    try:
        one, two = tiers
        pages = story.pages(1, 2, 3)
        assert [one.store.write(page) for page in pages] == ["written"] * 3
        placed = [Placed(story.namespace, page.meta.id) for page in pages]
        assert all(two.store.present(placed))
        for page in pages:
            with two.reading(page.meta.id) as opened:
                payload = bytearray(opened.meta.nbytes)
                opened.read_into([payload])
            assert payload == page.payload
        assert two.store.engine.delete([two.store.names.page(*one) for one in placed]) == 3
        elsewhere = RemoteOptions(url, "cpu", password=PASSWORD, prefix="another")
        other = RemoteTier(open_engine(address, elsewhere), elsewhere, engine_name="", where="")
        try:
            with pytest.raises(RemoteError) as refused:
                other.store.write(pages[0])
            assert refused.value.reason == "auth"
        finally:
            other.close(5)
    finally:
        for tier in tiers:
            tier.close(5)


def test_one_server_starts_with_the_files_flags_and_lets_a_machine_in(started: Any) -> None:
    service = _compose("valkey.yaml")["services"]["valkey"]
    port = free_port()
    client = started(service, _users("valkey.yaml"), "one", port)
    assert "maxmemory_policy:volatile-lru" in _info(client)
    assert "maxmemory:34359738368" in _info(client)
    with pytest.raises(redis.RedisError):
        client.config_get("*")
    with pytest.raises(redis.RedisError):
        redis.Redis(port=port).ping()
    client.close()
    _serves_a_machine(f"redis://omlx@127.0.0.1:{port}")


def test_three_nodes_make_a_cluster_with_the_files_flags(started: Any, tmp_path: Path) -> None:
    services = _compose("valkey-cluster.yaml")["services"]
    users = _users("valkey.yaml") + _users("valkey-cluster.yaml")
    # What the second file says of the user is what counts: it has more.
    lines = {line.split()[1]: line for line in users.splitlines()}
    ports = [free_port(10_000) for _ in CLUSTER_PORTS]
    for name, said, port in zip(("node1", "node2", "node3"), CLUSTER_PORTS, ports, strict=True):
        service = services[name]
        assert service["command"][3:] == services["node1"]["command"][3:]
        assert not _is_healthy(service, said, port)
        started(service, "\n".join(lines.values()) + "\n", name, port).close()
        assert _is_healthy(service, said, port)
        assert services["create"]["depends_on"][name] == {"condition": "service_healthy"}
    known = dict(zip(CLUSTER_PORTS, map(str, ports), strict=True))
    command = services["create"]["command"]
    given = [known.get(one.rpartition(":")[2], "") for one in command]
    mapped = [
        f"127.0.0.1:{port}" if port else one for one, port in zip(command, given, strict=True)
    ]
    made = subprocess.run(
        [program("cli"), *mapped[1:]],
        env={"REDISCLI_AUTH": PASSWORD, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    for port in ports:
        with redis.Redis(port=port, username="admin", password=PASSWORD) as client:
            eventually(partial(_agreed, client), "a cluster")
    _serves_a_machine(f"redis+cluster://omlx@127.0.0.1:{ports[0]}")


def _is_healthy(service: dict[str, Any], said: str, port: int) -> bool:
    """Carry out a node's own check of its health."""
    kind, line = service["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    assert f" {said} " in line
    line = line.replace("valkey-cli", program("cli")).replace(f" {said} ", f" {port} ")
    return subprocess.run(["/bin/sh", "-c", line], timeout=30, check=False).returncode == 0


def _agreed(client: redis.Redis) -> None:
    """Raise NotYet until a node knows that all slots are served."""
    state = str(client.execute_command("CLUSTER INFO"))
    if "cluster_state:ok" not in state and "'cluster_state': 'ok'" not in state:
        raise NotYet(state)


def _info(client: redis.Redis) -> str:
    found = client.info("memory")
    return " ".join(f"{name}:{value}" for name, value in found.items())
