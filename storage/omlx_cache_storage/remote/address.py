"""Where a remote store is: one URL, read into what an engine is opened with."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

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
    family = scheme if match is None else "redis"
    if family not in _OPTIONS or (match is not None and match[2] and match[4]):
        raise ValueError(f"{scheme}:// is none of the stores that there are; expected {FORMS}")
    _check_options(options, family)
    credentials, _, where = parts.netloc.rpartition("@")
    user, _, password = map(unquote, credentials.partition(":"))
    path = unquote(parts.path.strip("/"))
    hosts: tuple[Host, ...] = ()
    tls = not options.get("endpoint", "").startswith("http://") and scheme == "s3"
    kind: Any = scheme
    if match is not None:
        kind, tls = match[3] or "redis", bool(match[2] or match[4])
        hosts = _hosts(where, kind, path)
        scheme = f"redis{'s' if tls else ''}{f'+{kind}' if kind != 'redis' else ''}"
        where = ",".join(f"[{h}]:{port}" if ":" in h else f"{h}:{port}" for h, port in hosts)
    elif scheme == "s3":
        _check_bucket(where, bool(user), bool(password), options.get("endpoint", ""))
    elif where not in ("", "localhost") or not parts.path.startswith("/") or not path:
        raise ValueError("file:// takes the whole path of a directory: file:///mnt/share/cache")
    else:
        path, where, user, password = unquote(parts.path)[1:], "", "", ""
    who = f"{user}{':***' if password else ''}@" if user or password else ""
    at = f"/{path}" if path else ""
    said = "&".join(f"{n}={options[n]}" for n in ("endpoint", "prefix", "ttl") if n in options)
    return RemoteAddress(
        kind,
        f"{scheme}://{who}{where}{at}{f'?{said}' if said else ''}",
        hosts,
        tls,
        user or None,
        password or None,
        at if scheme == "file" else path,
        where if scheme == "s3" else "",
        options,
    )


def _hosts(where: str, kind: Kind, path: str) -> tuple[Host, ...]:
    """Return the hosts of a store of Redis; raises ValueError for what does not go with them."""
    usual = _SENTINEL_PORT if kind == "sentinel" else _REDIS_PORT
    hosts = []
    for one in (where or "127.0.0.1").split(","):
        match = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[^:\[\]/]+)(?::([0-9]{1,5}))?", one)
        if match is None or not 0 < int(match[2] or usual) < 65536:
            raise ValueError(
                "a host is NAME, NAME:PORT or [IPv6]:PORT; several are parted by commas"
            )
        hosts.append(Host(match[1].strip("[]"), int(match[2] or usual)))
    if kind == "redis" and len(hosts) > 1:
        raise ValueError("several hosts need redis+cluster:// or redis+sentinel://")
    if kind == "redis" and path and not (path.isascii() and path.isdigit() and int(path) < 1024):
        raise ValueError("the path of redis:// is the number of a database, such as /0")
    if kind == "cluster" and path not in ("", "0"):
        raise ValueError("a cluster has one database: leave the path out")
    if kind == "sentinel" and not path:
        raise ValueError("redis+sentinel:// needs the name of the service: .../mymaster")
    return tuple(hosts)


def _check_bucket(name: str, has_user: bool, has_password: bool, endpoint: str) -> None:
    if not _BUCKET.fullmatch(name):
        raise ValueError("s3:// needs a bucket's name, of 3 to 63 characters: s3://bucket/prefix")
    if has_user != has_password:
        raise ValueError("s3:// takes an access key and its secret together, or neither")
    if endpoint:
        try:
            where = urlsplit(endpoint)
        except ValueError:
            where = urlsplit("")
        if where.scheme not in ("http", "https") or not where.hostname or "@" in where.netloc:
            raise ValueError("endpoint= is a URL such as https://minio.local:9000, without a user")


def _check_options(options: dict[str, str], kind: str) -> None:
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
