"""Who is let in to a Redis server, by password, user and certificate, and what is never told."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.remote.certificates import Authority
from kit.remote.engines import engine_at, reason_of, whole, write
from kit.remote.redis_servers import RedisServer, redis_server

SECRET = "correct-horse-battery"


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    users = (
        f"user pages on >{SECRET} ~pages/* "
        "+get +getrange +set +exists +strlen +unlink +zadd +zrange +zremrangebyrank +pexpire "
        "+ping +select",
        "user reader on >readonly ~pages/* +get +getrange +zrange +ping",
    )
    with redis_server(password="of the default user".replace(" ", "-"), users=users) as server:
        yield server


@pytest.mark.parametrize("who", ["", "pages:wrong@", "nobody:correct-horse-battery@"])
def test_a_wrong_password_is_a_refusal(guarded: RedisServer, who: str) -> None:
    with engine_at(f"redis://{who}{guarded.place}") as engine:
        error = reason_of(engine.look, ["pages/a"], 4)
        assert error.reason == "auth"
        assert "wrong" not in str(error)
        assert SECRET not in str(error)


def test_a_user_needs_eleven_commands_and_no_more(guarded: RedisServer) -> None:
    with engine_at(f"redis://pages:{SECRET}@{guarded.place}") as engine:
        engine.ping()
        assert write(engine, "pages/v", b"head", b"part")
        assert not write(engine, "pages/v", b"head", b"part")
        engine.add("pages/set", "member")
        assert engine.look(["pages/v"], 4, ["pages/set"]) == ([b"head"], [["member"]])
        assert whole(engine, "pages/v", [4, 4]) == [b"head", b"part"]
        assert engine.delete(["pages/v"]) == 1


@pytest.mark.parametrize("password", [SECRET, 20 * SECRET], ids=["short", "cut by the server"])
def test_a_server_that_quotes_what_it_was_sent_gives_no_password_away(password: str) -> None:
    with (
        redis_server('rename-command AUTH ""') as server,
        engine_at(f"redis://pages:{password}@{server.place}") as engine,
    ):
        error = reason_of(engine.ping)
        assert SECRET not in str(error)
        assert "unknown command" in str(error)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def encrypted(authority: Authority) -> Iterator[RedisServer]:
    with redis_server(tls=authority.certificate("localhost"), ca=authority.ca) as server:
        yield server


def test_tls_with_the_authority_that_signed(encrypted: RedisServer, authority: Authority) -> None:
    with engine_at(f"{encrypted.url}?ca={authority.ca}") as engine:
        assert write(engine, "v", b"head", b"part")
        for _ in range(50):
            assert whole(engine, "v", [4, 4]) == [b"head", b"part"]


def test_a_server_that_nobody_known_vouches_for_is_not_talked_to(encrypted: RedisServer) -> None:
    with engine_at(f"rediss://:{SECRET}@{encrypted.place}") as engine:
        error = reason_of(engine.ping)
        assert error.reason == "error"
        assert "certificate" in str(error)


def test_a_server_may_want_a_certificate_too(authority: Authority) -> None:
    mine = authority.certificate("client")
    with redis_server(
        tls=authority.certificate("localhost"), ca=authority.ca, wants_certificates=True
    ) as server:
        url = f"{server.url}?ca={authority.ca}"
        with engine_at(f"{url}&cert={mine.cert}&key={mine.key}") as engine:
            engine.ping()
        with engine_at(url) as engine:
            # What it says of that may come after the connection has gone.
            assert reason_of(engine.ping).reason in ("auth", "lost")


@pytest.mark.parametrize(
    "options", ["ca={none}", "cert={none}", "cert={ca}", "cert={cert}&key={none}", "key={ca}"]
)
def test_files_that_cannot_be_used_are_told_at_once(
    authority: Authority, tmp_path: Path, options: str
) -> None:
    mine = authority.certificate("mine")
    files = options.format(none=tmp_path / "none", ca=authority.ca, cert=mine.cert)
    with pytest.raises(ValueError, match=options[:3]), engine_at(f"rediss://host?{files}"):
        pass
