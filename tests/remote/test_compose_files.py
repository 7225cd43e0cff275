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

from kit.remote.engines import engine_at, reason_of, whole, write
from kit.remote.processes import NotYet, ServerProcess, eventually, free_port
from kit.remote.redis_servers import program

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
    name = "omlx-cache/1/cpu/page"
    with engine_at(url, password=PASSWORD) as engine:
        assert write(engine, name, b"head", b"part")
        engine.add(f"{name}-tails", "member")
        assert engine.look([name], 4, [f"{name}-tails"]) == ([b"head"], [["member"]])
        assert whole(engine, name, [4, 4]) == [b"head", b"part"]
        assert engine.delete([name]) == 1
        assert reason_of(write, engine, "another/page", b"value").reason == "auth"


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


@pytest.mark.nightly
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
