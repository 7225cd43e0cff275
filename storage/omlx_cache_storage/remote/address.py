"""Where a remote store is: one URL, read into what an engine is opened with."""

import re
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

Kind = Literal["redis", "sentinel", "cluster", "s3", "file"]

FORMS = (
    "redis://host:6379/0, rediss://host:6379/0 (TLS), redis+sentinel://host1,host2/SERVICE, "
    "redis+cluster://host1,host2, s3://bucket/prefix?endpoint=URL&region=NAME or "
    "file:///a/directory (valkey stands for redis), with ?prefix=NAME and, of redis, ttl=SECONDS"
)
_REDIS_PORT, _SENTINEL_PORT = 6379, 26379
_SCHEME = re.compile(r"(redis|valkey)(s?)(?:\+(sentinel|cluster))?(s?)")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "redis": ("ca", "cert", "key", "prefix", "ttl"),
    "s3": ("endpoint", "region", "prefix"),
    "file": ("prefix",),
}
PREFIX = "omlx-cache"
TTL_SECONDS = 7 * 24 * 3600
"""A week: what nobody asked for by then is computed again."""
_LONGEST_TTL = 10 * 365 * 24 * 3600
_SAFE = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")


class Host(NamedTuple):
    name: str
    port: int


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """A store's address. `shown` and the `repr` name no password.

    `path` is the database of a single server, the service of a Sentinel, the prefix in a bucket, or
    a directory. `options` are what the URL's query said.
    """

    kind: Kind
    shown: str
    hosts: tuple[Host, ...] = ()
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = ""
    bucket: str = ""
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.shown

    @property
    def database(self) -> int:
        return int(self.path or 0)

    @property
    def prefix(self) -> str:
        """What the names of all values begin with, so that others can use the store too."""
        return self.options.get("prefix", PREFIX)

    @property
    def ttl_seconds(self) -> int:
        """How long a value lives in a Valkey or Redis store; 0: until it is evicted or deleted."""
        return int(self.options.get("ttl", TTL_SECONDS))


def names_password(url: str) -> bool:
    """Return whether there is a password in a URL, whatever else is wrong with it."""
    before, at, _ = (url.partition("://")[2] or url).rpartition("@")
    return bool(at) and ":" in before


def parse_address(url: str) -> RemoteAddress:
    """Return what a URL says; raises ValueError, whose text names no password, for anything
    else."""
    text = url.strip()
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if not scheme or not re.fullmatch(r"[a-z0-9+]{1,32}", scheme):
        raise ValueError(f"no URL of a store; expected {FORMS}")
    try:
        parts = urlsplit(text)
        options = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        )
    except ValueError:
        raise ValueError(f"the URL cannot be read; expected {FORMS}") from None
    if parts.fragment or any(ord(c) <= 32 for c in text):
        raise ValueError("the URL has a blank or a '#': write them as %20 and %23")
    if scheme != "file" and "@" in f"{parts.path}{parts.query}":
        # A password that was not quoted ends before its '/' or '?'; what follows is part of it.
        raise ValueError(
            "the URL has an '@' behind the host: in a password, / is %2F, ? is %3F, # is %23 and "
            "@ is %40"
        )
    match = _SCHEME.fullmatch(scheme)
    if match is not None and not (match[2] and match[4]):
        address = _redis(parts, match, options)
    elif scheme == "s3":
        address = _s3(parts, options)
    elif scheme == "file":
        address = _file(parts, options)
    else:
        raise ValueError(f"{scheme}:// is none of the stores that there are; expected {FORMS}")
    said = "&".join(f"{name}={options[name]}" for name in ("prefix", "ttl") if name in options)
    mark = "&" if "?" in address.shown else "?"
    return replace(address, shown=f"{address.shown}{mark}{said}") if said else address


def _redis(parts: SplitResult, match: "re.Match[str]", options: dict[str, str]) -> RemoteAddress:
    _known(options, "redis")
    kind: Kind = match[3] if match[3] in ("sentinel", "cluster") else "redis"  # type: ignore[assignment]
    tls = bool(match[2] or match[4])
    usual = _SENTINEL_PORT if kind == "sentinel" else _REDIS_PORT
    credentials, _, where = parts.netloc.rpartition("@")
    hosts = (
        tuple(_host(one, usual) for one in where.split(","))
        if where
        else (Host("127.0.0.1", usual),)
    )
    if kind == "redis" and len(hosts) > 1:
        raise ValueError("several hosts need redis+cluster:// or redis+sentinel://")
    path = unquote(parts.path.strip("/"))
    if kind == "redis" and path and not (path.isascii() and path.isdigit() and int(path) < 1024):
        raise ValueError("the path of redis:// is the number of a database, such as /0")
    if kind == "cluster" and path not in ("", "0"):
        raise ValueError("a cluster has one database: leave the path out")
    if kind == "sentinel" and not path:
        raise ValueError("redis+sentinel:// needs the name of the service: .../mymaster")
    user, password = _credentials(credentials)
    places = ",".join(_place(host) for host in hosts)
    scheme = f"redis{'s' if tls else ''}{f'+{kind}' if kind != 'redis' else ''}"
    shown = f"{scheme}://{_who(user, password)}{places}{f'/{path}' if path else ''}"
    return RemoteAddress(kind, shown, hosts, tls, user, password, path, options=options)


def _s3(parts: SplitResult, options: dict[str, str]) -> RemoteAddress:
    _known(options, "s3")
    credentials, _, bucket = parts.netloc.rpartition("@")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError("s3:// needs a bucket's name, of 3 to 63 characters: s3://bucket/prefix")
    user, password = _credentials(credentials)
    if (user is None) != (password is None):
        raise ValueError("s3:// takes an access key and its secret together, or neither")
    endpoint = options.get("endpoint", "")
    if endpoint:
        try:
            where = urlsplit(endpoint)
        except ValueError:
            where = urlsplit("")
        if where.scheme not in ("http", "https") or not where.hostname or "@" in where.netloc:
            raise ValueError("endpoint= is a URL such as https://minio.local:9000, without a user")
    path = unquote(parts.path.strip("/"))
    at = f"?endpoint={endpoint}" if endpoint else ""
    shown = f"s3://{_who(user, password)}{bucket}{f'/{path}' if path else ''}{at}"
    tls = not endpoint.startswith("http://")
    return RemoteAddress("s3", shown, (), tls, user, password, path, bucket=bucket, options=options)


def _file(parts: SplitResult, options: dict[str, str]) -> RemoteAddress:
    _known(options, "file")
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or path.strip("/") == "":
        raise ValueError("file:// takes the whole path of a directory: file:///mnt/share/cache")
    return RemoteAddress("file", f"file://{path}", path=path)


def _known(options: dict[str, str], kind: str) -> None:
    for name, value in options.items():
        if name not in _OPTIONS[kind]:
            known = ", ".join(f"{one}=" for one in _OPTIONS[kind]) or "nothing"
            said = f" {name}=" if re.fullmatch(r"[a-z_]{1,20}", name) else ""
            raise ValueError(f"unknown option{said} behind the '?'; there is {known}")
        if not value and name != "prefix":
            raise ValueError(f"{name}= is empty")
    prefix = options.get("prefix", "").strip("/")
    if prefix and (not _SAFE.fullmatch(prefix) or len(prefix) > 200 or ".." in prefix):
        raise ValueError("prefix= is of letters, digits, '.', '_', '-' and '/', at most 200")
    if "prefix" in options:
        options["prefix"] = prefix
    ttl = options.get("ttl", "0")
    if not (ttl.isascii() and ttl.isdigit() and int(ttl) <= _LONGEST_TTL):
        raise ValueError("ttl= is a whole number of seconds, at most ten years; 0: for good")


def _credentials(text: str) -> tuple[str | None, str | None]:
    user, colon, password = text.partition(":")
    return unquote(user) or None, unquote(password) if colon and password else None


def _who(user: str | None, password: str | None) -> str:
    if user is None and password is None:
        return ""
    return f"{user or ''}{':***' if password is not None else ''}@"


def _host(text: str, usual: int) -> Host:
    match = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^:\[\]/]+)(?::([0-9]{1,5}))?", text)
    if match is None or not 0 < int(match[2] or usual) < 65536:
        raise ValueError("a host is NAME, NAME:PORT or [IPv6]:PORT; several are parted by commas")
    return Host(match[1].strip("[]"), int(match[2] or usual))


def _place(host: Host) -> str:
    return f"[{host.name}]:{host.port}" if ":" in host.name else f"{host.name}:{host.port}"
