"""Real Valkey or Redis servers on loopback, with passwords, users and TLS."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .certificates import Certificate
from .processes import NotYet, ServerProcess, eventually, free_port

INSTALL = "apt-get install redis-server redis-tools"
LOCAL = "127.0.0.1"


def program(kind: str) -> str:
    """Return the path of the `server` or `cli`; skips the test when there is none."""
    for name in (f"valkey-{kind}", f"redis-{kind}"):
        if found := shutil.which(name):
            return found
    pytest.skip(f"needs a Redis server: {INSTALL}")


class RedisServer:
    """A server that keeps nothing on disk. `settings` are lines of its configuration file, which
    alone has its passwords. `admin` is the user and password that the test itself asks with."""

    def __init__(
        self,
        directory: Path,
        *settings: str,
        admin: tuple[str | None, str | None] = (None, None),
        tls: Certificate | None = None,
        ca: Path | None = None,
        bus: int = 0,
        mode: str = "",
    ) -> None:
        self.directory = directory
        self.port = free_port(bus)
        self._settings = settings
        self._admin = admin
        self._tls = tls
        self._ca = ca
        self._mode = mode
        self._config = directory / "server.conf"
        command = [program("server"), str(self._config), *([f"--{mode}"] if mode else [])]
        self.process = ServerProcess(command, directory / "log")

    @property
    def place(self) -> str:
        return f"{LOCAL}:{self.port}"

    @property
    def url(self) -> str:
        """Return where it is, without a user or password."""
        return f"redis{'s' if self._tls else ''}://{self.place}"

    def start(self) -> None:
        """Start it on its port, and return once it answers. It has nothing."""
        port = "port 0\ntls-port" if self._tls else "port"
        keeps_nothing = () if self._mode else ('save ""', "appendonly no")
        lines = (
            f"{port} {self.port}",
            f"bind {LOCAL}",
            f"dir {self.directory}",
            "daemonize no",
            *keeps_nothing,
            *self._settings,
        )
        self._config.write_text("\n".join(lines) + "\n")
        self._config.chmod(0o600)
        self.process.begin()
        eventually(self._answers, "starting a server")

    def restart(self) -> None:
        """Kill it, and start another one in its place, which has nothing."""
        self.process.kill()
        self.start()

    def ask(self, *command: Any) -> Any:
        """Return the answer to a command of the test's own."""
        user, password = self._admin
        tls: dict[str, Any] = {}
        if self._tls is not None:
            cert, key = map(str, self._tls)
            tls = {
                "ssl": True,
                "ssl_check_hostname": False,
                "ssl_ca_certs": str(self._ca),
                "ssl_certfile": cert,
                "ssl_keyfile": key,
            }
        client = redis.Redis(
            host=LOCAL,
            port=self.port,
            username=user,
            password=password,
            protocol=2,
            socket_timeout=30,
            retry=Retry(NoBackoff(), 0),
            **tls,
        )
        with contextlib.closing(client):
            connection = client.connection_pool.get_connection()
            connection.send_command(*command)
            return connection.read_response()

    def calls(self, command: str) -> int:
        """Return how often it was asked a command since it was started."""
        for line in bytes(self.ask("INFO", "commandstats")).decode().splitlines():
            if line.startswith(f"cmdstat_{command.lower()}:calls="):
                return int(line.partition("=")[2].partition(",")[0])
        return 0

    def _answers(self) -> None:
        self.process.check()
        try:
            self.ask("PING")
        except redis.RedisError as error:
            raise NotYet(str(error)) from None


@contextlib.contextmanager
def redis_server(
    *settings: str,
    password: str | None = None,
    users: tuple[str, ...] = (),
    tls: Certificate | None = None,
    ca: Path | None = None,
    wants_certificates: bool = False,
) -> Iterator[RedisServer]:
    """Run a server. `password` is that of its default user; `users` are lines as ACL files have
    them, such as `user reader on >secret ~* +get`. With `tls` and `ca` it takes TLS alone."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        lines = list(settings)
        if users:
            acl = directory / "users.acl"
            default = f"user default on {f'>{password}' if password else 'nopass'} ~* &* +@all"
            acl.write_text("\n".join((default, *users)) + "\n")
            lines.append(f"aclfile {acl}")
        elif password:
            lines.append(f"requirepass {password}")
        if tls is not None:
            lines += [f"tls-cert-file {tls.cert}", f"tls-key-file {tls.key}"]
            lines += [
                f"tls-ca-cert-file {ca}",
                f"tls-auth-clients {'yes' if wants_certificates else 'no'}",
            ]
        server = RedisServer(
            directory,
            *lines,
            admin=(None, password),
            tls=tls,
            ca=ca,
        )
        try:
            server.start()
            yield server
        finally:
            server.process.kill()
