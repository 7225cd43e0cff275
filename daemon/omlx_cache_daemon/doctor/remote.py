"""The store that machines share: whether it is reached, lets us in, suits a cache."""

import contextlib
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from omlx_cache.settings import CacheSettings
from omlx_cache.settings.names import ConfigError
from omlx_cache.settings.sizes import counted, duration, format_size
from omlx_cache_daemon.doctor.examination import ASK_SECONDS, Finding, in_order
from omlx_cache_daemon.doctor.link import Link, measure_lookups, measure_rates, measure_trips
from omlx_cache_daemon.errors import CommandError
from omlx_cache_daemon.figures import ask_figures, total
from omlx_cache_daemon.stores import StoreQuestion, running
from omlx_cache_storage.errors import Trouble
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import RemoteError, RemoteOptions
from omlx_cache_storage.remote.tier import open_engine

_KIND = "doctor"
"""Stands for the architecture, which needs MLX to be told: nothing is asked for under it."""
_DAY = 86400
_SOON_DAYS = 14
_COMMANDS = (
    "+ping +info +get +set +getrange +strlen +exists +unlink +pexpire +zadd +zrange "
    "+zremrangebyrank +cluster|slots +cluster|shards"
)
_LOG = "see the store's log"
_RUNS = "see that it runs, and that no firewall is between"
TROUBLES: Final[Mapping[Trouble, tuple[str, str]]] = {
    "refused": ("is not reached", _RUNS),
    "timeout": (
        "does not answer in time",
        f"{_RUNS}; a larger OMLX_CACHE_REMOTE_LOOKUP_SECONDS",
    ),
    "auth": ("does not let this machine in", ""),
    "throttled": ("is not ready, or asked too much", _LOG),
    "lost": (
        "breaks the connection",
        "see its log; for Redis rediss:// where the server wants TLS, redis:// where it does not",
    ),
    "full": (
        "has no room",
        "CONFIG SET maxmemory-policy volatile-lru; for a bucket a lifecycle rule, for a directory "
        "a larger disk",
    ),
    "error": ("answers with an error", _LOG),
}
"""What each reason means, and what helps."""


def examined(url: str, seconds: float) -> tuple[Link, list[Finding]]:
    """Examine the store at a URL, or the configured one for "", and measure it for some `seconds`
    a rate; raises CommandError where nothing can be examined, nothing for a store that fails."""
    try:
        settings = CacheSettings(remote=url) if url else CacheSettings()
        options, address = settings.remote_options(_KIND), settings.remote
        if options is None or not isinstance(address, RemoteAddress):
            raise CommandError(
                "remote is off: name a store (omlx-cache doctor --remote redis://HOST:6379), or "
                "set OMLX_CACHE_REMOTE"
            )
        link = Link(address.shown, _rates())
        writes = settings.remote_writes != "off"
        found = list(examine_remote(address, options, link, writes=writes, seconds=seconds))
    except (ConfigError, ValueError, ImportError) as error:
        raise CommandError(str(error)) from None
    for finding in found:
        finding.check = "remote"
    return link, in_order(found)


def _rates() -> dict[str, float]:
    """Return how quickly running stores compute, by model."""
    replies = StoreQuestion(ask_figures, ASK_SECONDS).ask(running())
    known = [reply.answer[1:] for reply in replies if reply.answer is not None]
    rates = total(known).requests.prefill_tokens_per_second if known else {}
    return {model: rate for model, rate in rates.items() if rate > 0}


def examine_remote(
    address: RemoteAddress, options: RemoteOptions, link: Link, *, writes: bool, seconds: float
) -> Iterator[Finding]:
    """Ask and measure a store, and yield what is not as it should be. Raises ValueError and
    ImportError where no engine can be opened; nothing for a store that fails."""
    with contextlib.closing(open_engine(address, options)) as engine:
        try:
            measure_trips(engine, link)
        except RemoteError as error:
            has_password = bool(options.password or address.password)
            what = f"{address} {TROUBLES[error.reason][0]} ({error})"
            remedy = _remedy(address, error, has_password=has_password)
            yield Finding("error", what, "requests go on without it", remedy)
            return
        link.reached = True
        yield from _safety(address, options)
        if address.kind not in ("s3", "file"):
            yield from _server(engine, address, options, link)
        try:
            measure_lookups(engine, options, link)
            measure_rates(engine, options, seconds, link)
        except RemoteError as error:
            yield _unused(address, error, writes=writes)
    yield from _judged(address, options, link)


def _unused(address: RemoteAddress, error: RemoteError, *, writes: bool) -> Finding:
    denied = error.reason == "auth"
    what = "lets this machine in, and not write or read" if denied else TROUBLES[error.reason][0]
    return Finding(
        "error" if writes or not denied else "note",
        f"{address} {what} as values were written and read: {error}",
        "nothing of this machine comes there"
        if writes
        else "this machine only reads, as it is set (remote_writes=off); how quickly was not "
        "measured",
        _remedy(address, error, lets_in=True),
    )


def _remedy(
    address: RemoteAddress, error: RemoteError, *, lets_in: bool = False, has_password: bool = False
) -> str:
    if "certificate" in str(error).lower():
        return (
            "name the authority that signed it: ?ca=/path/ca.pem; and see that the clock is right"
        )
    if address.kind == "file" and error.reason != "full":
        return (
            "see that its disk or share is mounted, and that it is a directory to which this user "
            f"may write: ls -ld {address.path}"
        )
    if error.reason != "auth":
        place = (
            address.hosts[0] if address.hosts and error.reason in ("refused", "timeout") else None
        )
        look = "" if place is None else f"; nc -vz {place.name} {place.port}"
        return TROUBLES[error.reason][1] + look
    if address.kind == "s3":
        return "check the access key and its rights: GetObject, PutObject, DeleteObject, ListBucket"
    if lets_in:
        return f"ACL SETUSER NAME ~PREFIX/* {_COMMANDS}"
    if has_password:
        return (
            f"the password that is set is not the one of the user {address.user or 'default'}, or "
            "there is no such user (ACL LIST on the server); another one is named in the address: "
            "redis://USER@HOST"
        )
    return (
        "set OMLX_CACHE_REMOTE_PASSWORD, file:PATH for one in a file, and name the user in the "
        "address: redis://USER@HOST"
    )


def _safety(address: RemoteAddress, options: RemoteOptions) -> Iterator[Finding]:
    if not address.tls and not _is_here(address) and not options.encrypts:
        scheme = "https in endpoint=" if address.kind == "s3" else "rediss://"
        yield Finding(
            "warning",
            "the way there is not encrypted",
            "who can listen on the network reads the password, and keys and values that reveal "
            "prompts",
            f"{scheme}, a VPN, or remote_encrypt=true for the pages",
        )
    if options.secret is None:
        yield Finding(
            "note",
            "the machines share no secret",
            "who can write to the store can plant keys and values of their own",
            "OMLX_CACHE_REMOTE_SECRET on each machine, the same one (openssl rand -hex 32)",
        )


def _is_here(address: RemoteAddress) -> bool:
    endpoint = urlsplit(address.options.get("endpoint", "")).hostname
    names = {host.name for host in address.hosts} or {endpoint or ""}
    for name in names - {"localhost"} if address.kind != "file" else ():
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(name).is_loopback:
                continue
        return False
    return True


def _server(
    engine: Any, address: RemoteAddress, options: RemoteOptions, link: Link
) -> Iterator[Finding]:
    """Yield what a server of Valkey or Redis says of itself that does not suit a cache."""
    days = link.certificate_days = certificate_days(address, options.read_seconds)
    if days is not None and days <= _SOON_DAYS:
        yield Finding(
            "warning",
            f"the server's certificate ends in {duration(days * _DAY)}",
            "no machine reads or writes there afterwards",
            "renew it",
        )
    said: dict[str, str] = {}
    try:
        for section in ("server", "memory", "stats", "persistence"):
            said |= engine.info(section)
    except RemoteError as error:
        denied = error.reason == "auth"
        yield Finding(
            "note",
            "this user may not ask the server how it is set up (INFO)"
            if denied
            else f"the server does not say how it is set up: {error}",
            "whether it has a limit of memory, and evicts, is not known",
            ("ACL SETUSER NAME +info, or " if denied else "")
            + "look on the server: CONFIG GET maxmemory*",
        )
        return
    names = [name for name in ("valkey", "redis") if f"{name}_version" in said]
    link.server = f"{names[0].capitalize()} {said[f'{names[0]}_version']}" if names else ""
    yield from _memory(said, options.ttl_seconds)
    if said.get("aof_enabled") == "1":
        yield Finding(
            "note",
            "the server writes all that it is given to its disk too (appendonly)",
            "it takes pages no faster than that disk, which wears; a cache can be lost",
            "appendonly no, and save '' in its configuration, where nothing else needs them",
        )


def _memory(said: Mapping[str, str], ttl_seconds: int) -> Iterator[Finding]:
    limit, policy = int(said.get("maxmemory", "-1")), said.get("maxmemory_policy", "")
    wanted = f"CONFIG SET maxmemory-policy {'volatile-lru' if ttl_seconds else 'allkeys-lru'}"
    if limit == 0:
        total = int(said.get("total_system_memory", "0")) or 16 << 30
        yield Finding(
            "error",
            "the server has no limit of memory (maxmemory 0)",
            "it grows until the system kills it, or swaps",
            f"CONFIG SET maxmemory {total // 2 >> 20}mb; {wanted}",
        )
    elif policy == "noeviction":
        ends = "until values expire" if ttl_seconds else "for good: they have no TTL"
        yield Finding(
            "warning" if ttl_seconds else "error",
            f"the server refuses what is new when its {format_size(limit)} are full "
            "(maxmemory-policy noeviction)",
            f"nothing more is shared then, {ends}",
            wanted,
        )
    elif policy.startswith("volatile") and not ttl_seconds:
        yield Finding(
            "error",
            f"the server evicts only what has a time to live ({policy}), and ttl= of the address "
            "is 0",
            "it refuses what is new when it is full",
            f"give the address another ttl=, or {wanted}",
        )
    elif policy.endswith(("random", "ttl")):
        yield Finding(
            "warning",
            f"the server does not evict what was used longest ago ({policy})",
            "what all machines use leaves as soon as what nobody does",
            wanted,
        )


def certificate_days(address: RemoteAddress, seconds: float) -> float | None:
    """Return how long the server's certificate is good for, in days; None where that is not told.
    Connects once more; raises nothing."""
    if not address.tls or not address.hosts:
        return None
    host, options = address.hosts[0], address.options
    with contextlib.suppress(OSError, ValueError):
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"), password=lambda: "")
        with (
            socket.create_connection((host.name, host.port), timeout=seconds) as plain,
            context.wrap_socket(plain, server_hostname=host.name) as wrapped,
        ):
            told: Mapping[str, object] = wrapped.getpeercert() or {}
        return (ssl.cert_time_to_seconds(str(told.get("notAfter"))) - time.time()) / _DAY
    return None


def _judged(address: RemoteAddress, options: RemoteOptions, link: Link) -> Iterator[Finding]:
    lookup, one, together = link.lookup_seconds, link.read_rate, link.parallel_rate
    if lookup is not None and lookup > options.lookup_seconds:
        yield Finding(
            "warning",
            f"a lookup takes up to {duration(lookup)}, and a request waits for "
            f"{duration(options.lookup_seconds)}",
            "requests go on without what the store has (remote_timeout)",
            f"OMLX_CACHE_REMOTE_LOOKUP_SECONDS={1.5 * lookup:.2g}, or a store that is nearer",
        )
    if link.damaged_values:
        yield Finding(
            "error",
            f"{counted(link.damaged_values, 'value')} came back otherwise than written, or not at "
            "all",
            "pages are checked, so that no wrong answer comes of it; they are computed again",
            "see whether the store is full and evicts at once, and its memory and network",
        )
    if link.left_values:
        yield Finding(
            "note",
            f"{counted(link.left_values, 'value')}, written to measure, could not be deleted",
            "that is some megabytes until they expire",
            f"delete what begins with {options.prefix}/doctor-",
        )
    if address.kind == "s3" and lookup is not None:
        yield Finding(
            "note",
            f"a lookup asks for {counted(link.phase_pages, 'page')} at once: each is a request",
            "buckets bill requests, and answer slowly",
            "Valkey or Redis where that matters: docs/remote.md",
        )
    if address.kind == "file" and one is not None:
        yield Finding(
            "note",
            "what was just written to the directory was read from this machine's memory",
            "what another machine wrote comes at the rate of the network or the disk",
            "measure the network by itself: iperf3, or a large file that another machine wrote",
        )
    if one and together and link.connections > 1 and together < 0.8 * one and not _is_here(address):
        yield Finding(
            "note",
            f"{link.connections} connections bring less than one",
            "reading is held up by something other than the way there",
            "measure the network by itself: `iperf3 -P 8`; then look at the store's machine",
        )
