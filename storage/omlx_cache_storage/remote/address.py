"""The address of a remote store: one URL, read into the arguments that open an engine."""

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
"""A week: a page that no request used by then is computed again."""
_LONGEST_TTL = 10 * 365 * 24 * 3600
_HOST = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^:\[\]/]+)(?::([0-9]{1,5}))?")
_URL = re.compile(r"[^:]*://([^/?#]*)([^?#]*)\??([^#]*)(#?)", re.DOTALL)
"""RFC 3986, appendix B: `urlsplit` refuses brackets behind a first host from some 3.11 on."""
_SAFE = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")


class Host(NamedTuple):
    name: str
    port: int


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """A store's address. `shown` and the `repr` name no password.

    `path` is the database of a single server, the service of a Sentinel, the prefix in a bucket, or
    a directory. `options` are those of the URL's query.
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
    def prefix(self) -> str:
        """The beginning of all names of values, so that other programs can use the store too."""
        return self.options.get("prefix", PREFIX)

    @property
    def ttl_seconds(self) -> int:
        """How long a value lives in a Valkey or Redis store; 0: until it is evicted or deleted."""
        return int(self.options.get("ttl", TTL_SECONDS))


def names_password(url: str) -> bool:
    before, at, _ = (url.partition("://")[2] or url).rpartition("@")
    return bool(at) and ":" in before


def parse_address(url: str) -> RemoteAddress:
    """Return the address in a URL; raises ValueError, whose text names no password."""
    text = url.strip()
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    _need(re.fullmatch(r"[a-z0-9+]{1,32}", scheme), f"no URL of a store; expected {FORMS}")
    netloc, whole_path, query, fragment = _URL.match(text).groups("")  # type: ignore[union-attr]
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise ValueError(f"the URL cannot be read; expected {FORMS}") from None
    _need(
        not fragment and all(ord(c) > 32 for c in text),
        "the URL has a blank or a '#': write them as %20 and %23",
    )
    # A password that was not quoted ends before its '/' or '?'; what follows is part of it.
    _need(
        scheme == "file" or "@" not in f"{whole_path}{query}",
        "the URL has an '@' behind the host: in a password, / is %2F, ? is %3F, # is %23 and @ is "
        "%40",
    )
    match = _SCHEME.fullmatch(scheme)
    family = scheme if match is None else "redis"
    _need(
        family in _OPTIONS and not (match and match[2] and match[4]),
        f"{scheme}:// is none of the stores that there are; expected {FORMS}",
    )
    _check_options(options, family)
    credentials, _, where = netloc.rpartition("@")
    user, _, password = map(unquote, credentials.partition(":"))
    path = unquote(whole_path.strip("/"))
    hosts: tuple[Host, ...] = ()
    tls = not options.get("endpoint", "").startswith("http://") and scheme == "s3"
    kind: Any = scheme
    if match is not None:
        kind, tls = match[3] or "redis", bool(match[2] or match[4])
        hosts = _hosts(where, kind, path)
        scheme = f"redis{'s' if tls else ''}{f'+{kind}' if kind != 'redis' else ''}"
        where = ",".join(f"[{h}]:{port}" if ":" in h else f"{h}:{port}" for h, port in hosts)
    elif scheme == "s3":
        _need(
            _BUCKET.fullmatch(where),
            "s3:// needs a bucket's name, of 3 to 63 characters: s3://bucket/prefix",
        )
        _need(
            bool(user) == bool(password),
            "s3:// takes an access key and its secret together, or neither",
        )
    else:
        _need(
            where in ("", "localhost") and whole_path.startswith("/") and path,
            "file:// takes the whole path of a directory: file:///mnt/share/cache",
        )
        path, where, user, password = unquote(whole_path)[1:], "", "", ""
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


def _need(found: object, text: str) -> None:
    if not found:
        raise ValueError(text)


def _hosts(where: str, kind: Kind, path: str) -> tuple[Host, ...]:
    usual = _SENTINEL_PORT if kind == "sentinel" else _REDIS_PORT
    matches = [_HOST.fullmatch(one) for one in (where or "127.0.0.1").split(",")]
    hosts = tuple(Host(m[1].strip("[]"), int(m[2] or usual)) for m in matches if m is not None)
    _need(
        all(matches) and all(0 < host.port < 65536 for host in hosts),
        "a host is NAME, NAME:PORT or [IPv6]:PORT; several are parted by commas",
    )
    _need(
        kind != "redis" or len(hosts) == 1,
        "several hosts need redis+cluster:// or redis+sentinel://",
    )
    _need(
        kind != "redis" or (re.fullmatch("[0-9]{0,4}", path) and int(path or 0) < 1024),
        "the path of redis:// is the number of a database, such as /0",
    )
    _need(kind != "cluster" or path in ("", "0"), "a cluster has one database: leave the path out")
    _need(
        kind != "sentinel" or path,
        "redis+sentinel:// needs the name of the service: .../mymaster",
    )
    return hosts


def _check_options(options: dict[str, str], kind: str) -> None:
    for name, value in options.items():
        known = ", ".join(f"{one}=" for one in _OPTIONS[kind])
        said = f" {name}=" if re.fullmatch(r"[a-z_]{1,20}", name) else ""
        _need(name in _OPTIONS[kind], f"unknown option{said} behind the '?'; there is {known}")
        _need(value or name == "prefix", f"{name}= is empty")
    if "prefix" in options:
        options["prefix"] = options["prefix"].strip("/")
    prefix, ttl = options.get("prefix", ""), options.get("ttl", "0")
    _need(
        not prefix or (_SAFE.fullmatch(prefix) and len(prefix) <= 200 and ".." not in prefix),
        "prefix= is of letters, digits, '.', '_', '-' and '/', at most 200",
    )
    _need(
        re.fullmatch("[0-9]{1,9}", ttl) and int(ttl) <= _LONGEST_TTL,
        "ttl= is a whole number of seconds, at most ten years; 0: for good",
    )
    try:
        where = urlsplit(options.get("endpoint", "http://nowhere"))
    except ValueError:
        where = urlsplit("")
    _need(
        where.scheme in ("http", "https") and where.hostname and "@" not in where.netloc,
        "endpoint= is a URL such as https://minio.local:9000, without a user",
    )
