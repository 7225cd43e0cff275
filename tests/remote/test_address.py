"""What URLs of stores say, and that no password leaves one."""

import re
import traceback
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx_cache_storage.remote.address import Host, RemoteAddress, names_password, parse_address

SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=6, max_size=24).map(
    lambda text: f"Pw{text}wP"
)
SCHEMES = st.sampled_from(
    ["redis", "rediss", "valkey", "valkeys", "redis+cluster", "rediss+cluster", "valkey+cluster"]
)
NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,12}[a-z0-9])?(\.[a-z]{2,6})?", fullmatch=True)
V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(str)
PORTS = st.integers(1, 65535)


@pytest.mark.parametrize(
    ("url", "has"),
    [
        ("redis://:hidden@nas", True),
        ("redis://me:hid/den@nas", True),
        ("me:hidden@nas", True),
        ("nothing://me:hidden@nas", True),
        ("redis://me@nas:6379", False),
        ("redis://nas:6379", False),
        ("s3://key:hidden@bucket?endpoint=http://nas:9000", True),
        ("off", False),
        ("", False),
    ],
)
def test_a_password_is_seen_in_any_url(url: str, has: bool) -> None:
    assert names_password(url) == has


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://cache", RemoteAddress("redis", "redis://cache:6379", (Host("cache", 6379),))),
        (
            "rediss://h:1/3",
            RemoteAddress("redis", "rediss://h:1/3", (Host("h", 1),), True, path="3"),
        ),
        (
            "valkey+cluster://a,b:7",
            RemoteAddress("cluster", "redis+cluster://a:6379,b:7", (Host("a", 6379), Host("b", 7))),
        ),
        (
            "redis+sentinel://a,b/mymaster",
            RemoteAddress(
                "sentinel",
                "redis+sentinel://a:26379,b:26379/mymaster",
                (Host("a", 26379), Host("b", 26379)),
                path="mymaster",
            ),
        ),
        (
            "s3://bucket/some/prefix?endpoint=http://127.0.0.1:9000&region=eu",
            RemoteAddress(
                "s3",
                "s3://bucket/some/prefix?endpoint=http://127.0.0.1:9000",
                path="some/prefix",
                bucket="bucket",
                options={"endpoint": "http://127.0.0.1:9000", "region": "eu"},
            ),
        ),
        (
            "file:///mnt/a%20share",
            RemoteAddress("file", "file:///mnt/a share", path="/mnt/a share"),
        ),
    ],
)
def test_a_url_says_which_store_where_and_how(url: str, expected: RemoteAddress) -> None:
    assert parse_address(url) == expected


@given(SCHEMES, st.lists(st.tuples(NAMES | V4 | V6, PORTS), min_size=1, max_size=4))
def test_hosts_of_every_kind_are_read_and_shown(scheme: str, hosts: list[tuple[str, int]]) -> None:
    hosts = hosts if "cluster" in scheme else hosts[:1]
    places = ",".join(
        f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name, port in hosts
    )
    address = parse_address(f"{scheme}://{places}")
    assert address.hosts == tuple(Host(*host) for host in hosts)
    assert places in address.shown
    assert address.tls == (scheme.partition("+")[0].endswith("s") and scheme[:6] not in "redis+")


@given(SCHEMES, NAMES, SECRETS)
def test_a_password_is_read_exactly_and_shown_nowhere(
    scheme: str, user: str, password: str
) -> None:
    address = parse_address(f"{scheme}://{user}:{quote(password, safe='')}@host:1234")
    assert (address.user, address.password) == (user, password)
    for text in (address.shown, repr(address), str(address)):
        assert password not in text
        assert quote(password, safe="") not in text


@pytest.mark.parametrize(
    "scheme", ["redis", "rediss+sentinel", "redis+cluster", "s3", "file", "http", "no scheme"]
)
@pytest.mark.parametrize(
    "rest",
    [
        "host:99999",
        "host/letters",
        "host?unknown=1",
        "host:1#fragment",
        "ho st",
        "[::1",
        "a,b",
        "",
        "B/prefix?endpoint=nowhere",
        "bucket?endpoint=http://me:{}@host",
        "host?ca=",
        "host?{}=x",
        "host?ca={}&ca",
    ],
)
@given(secret=SECRETS)
def test_no_text_of_an_error_has_a_password(scheme: str, rest: str, secret: str) -> None:
    quoted = quote(secret, safe="")
    url = f"{scheme}://user:{quoted}@{rest}".replace("{}", quoted)
    shown = shown_or_told(url)
    assert secret not in shown
    assert quoted not in shown


def shown_or_told(url: str) -> str:
    """Return an address as it is shown, or else the whole error, with what led to it."""
    try:
        return parse_address(url).shown
    except ValueError as error:
        return "".join(traceback.format_exception_only(error)) + str(
            None if error.__suppress_context__ else error.__context__
        )


@given(st.text(max_size=60))
def test_anything_else_is_refused_in_words(text: str) -> None:
    assert shown_or_told(text)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("cache:6379", "expected redis://"),
        ("ftp://host", "ftp://"),
        ("redis://a,b", "redis+cluster://"),
        ("redis://host/first", "number of a database"),
        ("redis+sentinel://host", "name of the service"),
        ("redis+cluster://host/2", "leave the path out"),
        ("redis://host:0", "NAME:PORT"),
        ("s3://B", "bucket"),
        ("s3://key@bucket", "together"),
        ("file://share/path", "file:///"),
        ("file:relative", "expected"),
        ("redis://host?tls=1", "ca="),
        ("redis://host#1", "%23"),
    ],
)
def test_an_error_says_what_to_write(url: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_address(url)


@pytest.mark.parametrize("scheme", ["redis", "redis+sentinel", "redis+cluster", "s3"])
@pytest.mark.parametrize("password", ["se/cret", "se?cret=word", "12/cret", "se#cret", "12?cret"])
def test_a_password_that_was_not_quoted_is_not_shown_in_part(scheme: str, password: str) -> None:
    with pytest.raises(ValueError, match=r"%|host|bucket") as error:
        parse_address(f"{scheme}://user:{password}@host/name")
    assert "cret" not in str(error.value)
