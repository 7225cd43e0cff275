"""What a server of Valkey or Redis says of itself, and whether that suits a cache."""

import ssl
import time
from collections.abc import Mapping

from omlx_cache.settings.sizes import format_size
from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_daemon.render import duration
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import RemoteError, RemoteOptions
from omlx_cache_storage.remote.redis_engine import RedisEngine

Facts = dict[str, str]
_SECTIONS = ("server", "memory", "stats", "persistence")
_DAY = 86400
_SOON_DAYS = 14


def facts_of(engine: RedisEngine) -> Facts:
    """Return what a server says of itself, of a cluster one node; raises RemoteError."""
    said: Facts = {}
    for section in _SECTIONS:
        said |= engine.info(section)
    return said


def version_of(facts: Facts) -> str:
    """Return which server it is, "" where it does not say."""
    for name in ("valkey_version", "redis_version"):
        if name in facts:
            return f"{name.partition('_')[0].capitalize()} {facts[name]}"
    return ""


def suits(facts: Facts, options: RemoteOptions) -> list[Finding]:
    """Return what is not as a cache needs it."""
    found = _memory(facts, options)
    saves = facts.get("aof_enabled") == "1"
    if saves:
        found.append(
            Finding(
                "note",
                "the server writes all that it is given to its disk too (appendonly)",
                "it takes pages no faster than that disk, which wears; a cache can be lost",
                "appendonly no, and save '' in its configuration, where nothing else needs them",
            )
        )
    return found


def _memory(facts: Facts, options: RemoteOptions) -> list[Finding]:
    limit, policy = _number(facts, "maxmemory"), facts.get("maxmemory_policy", "")
    if limit is None:
        return []
    if limit == 0:
        total = _number(facts, "total_system_memory")
        share = f"{total // 2 >> 20}mb" if total else "8gb"
        return [
            Finding(
                "error",
                "the server has no limit of memory (maxmemory 0)",
                "it grows until the system kills it, or swaps",
                f"CONFIG SET maxmemory {share}; CONFIG SET maxmemory-policy {_wanted(options)}",
            )
        ]
    if policy == "noeviction":
        ends = "until values expire" if options.ttl_seconds else "for good: they have no TTL"
        return [
            Finding(
                "error" if not options.ttl_seconds else "warning",
                f"the server refuses what is new when its {format_size(limit)} are full "
                "(maxmemory-policy noeviction)",
                f"nothing more is shared then, {ends}",
                f"CONFIG SET maxmemory-policy {_wanted(options)}",
            )
        ]
    if policy.startswith("volatile") and not options.ttl_seconds:
        return [
            Finding(
                "error",
                f"the server evicts only what has a time to live ({policy}), and "
                "ttl= of the address is 0",
                "it refuses what is new when it is full",
                "give the address another ttl=, or CONFIG SET maxmemory-policy allkeys-lru",
            )
        ]
    if policy.endswith(("random", "ttl")):
        return [
            Finding(
                "warning",
                f"the server does not evict what was used longest ago ({policy})",
                "what all machines use leaves as soon as what nobody does",
                f"CONFIG SET maxmemory-policy {_wanted(options)}",
            )
        ]
    return []


def _wanted(options: RemoteOptions) -> str:
    return "volatile-lru" if options.ttl_seconds else "allkeys-lru"


def certificate_days(address: RemoteAddress, seconds: float) -> float | None:
    """Return how long the server's certificate is good for, in days; None where that is not told.
    Connects once more; raises nothing."""
    if not address.tls or not address.hosts:
        return None
    import socket

    host = address.hosts[0]
    ca, cert, key = (address.options.get(name) for name in ("ca", "cert", "key"))
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key, password=lambda: "")
        with (
            socket.create_connection((host.name, host.port), timeout=seconds) as plain,
            context.wrap_socket(plain, server_hostname=host.name) as wrapped,
        ):
            told: Mapping[str, object] = wrapped.getpeercert() or {}
        ends = told.get("notAfter")
        return (ssl.cert_time_to_seconds(str(ends)) - time.time()) / _DAY if ends else None
    except (OSError, ValueError):
        return None


def certificate(days: float | None) -> list[Finding]:
    """Return a finding for a certificate that is about to end."""
    if days is None or days > _SOON_DAYS:
        return []
    return [
        Finding(
            "warning",
            f"the server's certificate ends in {duration(days * _DAY)}",
            "no machine reads or writes there afterwards",
            "renew it",
        )
    ]


def not_told(error: RemoteError) -> list[Finding]:
    """Return the finding of a user that may not ask what the server is like."""
    return [
        Finding(
            "note",
            "this user may not ask the server how it is set up (INFO)",
            "whether it has a limit of memory, and evicts, is not known",
            "ACL SETUSER NAME +info, or look on the server: CONFIG GET maxmemory*",
        )
        if error.reason == "auth"
        else Finding(
            "note",
            f"the server does not say how it is set up: {error}",
            "whether it has a limit of memory, and evicts, is not known",
            "look on the server: CONFIG GET maxmemory*",
        )
    ]


def _number(facts: Facts, name: str) -> int | None:
    text = facts.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
