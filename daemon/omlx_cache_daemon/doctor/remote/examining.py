"""The examination of one remote store: is it reached and let in, how is it set up, what does it
give, and what is that good for."""

import ipaddress
from dataclasses import asdict, dataclass, field
from typing import Any

from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_daemon.doctor.remote.measuring import (
    Measured,
    measure_lookups,
    measure_rates,
    measure_trips,
)
from omlx_cache_daemon.doctor.remote.troubles import unreached, unwritten
from omlx_cache_daemon.doctor.remote.worth import MODELS, Worth, worth
from omlx_cache_daemon.render import duration
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import RemoteEngine, RemoteError, RemoteOptions
from omlx_cache_storage.remote.tier import open_engine


@dataclass(slots=True)
class Examined:
    """What was found and measured. `server` is what it says that it is, "" where it does not."""

    where: str
    server: str = ""
    reached: bool = False
    certificate_days: float | None = None
    measured: Measured = field(default_factory=Measured)
    findings: list[Finding] = field(default_factory=list)

    @property
    def worth(self) -> list[Worth]:
        """What the link is good for, by model; nothing where it could not be measured."""
        rate, lookup = self.measured.best_rate, self.measured.lookup_seconds
        if rate is None or lookup is None:
            return []
        return [worth(model, rate, lookup) for model in MODELS]

    def to_dict(self) -> dict[str, object]:
        """Return plain values, for JSON."""
        return {
            "where": self.where,
            "server": self.server,
            "reached": self.reached,
            "certificate_days": self.certificate_days,
            **asdict(self.measured),
            "lookup_seconds": self.measured.lookup_seconds,
            "worth": [one.to_dict() for one in self.worth],
        }


def examine_remote(
    address: RemoteAddress, options: RemoteOptions, *, writes: bool, seconds: float
) -> Examined:
    """Ask, measure and judge a store. Raises ValueError and ImportError where no engine can be
    opened; nothing for a store that fails."""
    done = Examined(address.shown)
    engine = open_engine(address, options)
    try:
        _examine(engine, address, options, done, writes=writes, seconds=seconds)
    finally:
        engine.close()
    for finding in done.findings:
        finding.check = finding.check or "remote"
    return done


def _examine(
    engine: RemoteEngine,
    address: RemoteAddress,
    options: RemoteOptions,
    done: Examined,
    *,
    writes: bool,
    seconds: float,
) -> None:
    measured = done.measured
    try:
        measure_trips(engine, measured)
    except RemoteError as error:
        has_password = bool(options.password or address.password)
        done.findings.append(unreached(address, error, has_password=has_password))
        return
    done.reached = True
    done.findings += _safety(address, options)
    if address.kind not in ("s3", "file"):
        _ask_server(engine, address, options, done)
    try:
        measure_lookups(engine, options, measured)
        measure_rates(engine, options, seconds, measured)
    except RemoteError as error:
        done.findings.append(unwritten(address, error, writes=writes))
    done.findings += _judged(measured, options)
    if address.kind == "s3" and measured.phase_seconds is not None:
        done.findings += _requests(measured)
    if address.kind == "file":
        done.findings += _from_memory(measured)
    elif not _is_here(address):
        done.findings += _held_up(measured)


def _ask_server(
    engine: Any, address: RemoteAddress, options: RemoteOptions, done: Examined
) -> None:
    # Not for a directory: it needs the client of Redis.
    from omlx_cache_daemon.doctor.remote import server

    done.certificate_days = server.certificate_days(address, options.read_seconds)
    done.findings += server.certificate(done.certificate_days)
    try:
        facts = server.facts_of(engine)
    except RemoteError as error:
        done.findings += server.not_told(error)
        return
    done.server = server.version_of(facts)
    done.findings += server.suits(facts, options)


def _safety(address: RemoteAddress, options: RemoteOptions) -> list[Finding]:
    found = []
    is_open = not address.tls and address.kind != "file" and not _is_here(address)
    if is_open and not options.encrypts:
        scheme = "https in endpoint=" if address.kind == "s3" else "rediss://"
        found.append(
            Finding(
                "warning",
                "the way there is not encrypted",
                "who can listen on the network reads the password, and keys and values that reveal "
                "prompts",
                f"{scheme}, a VPN, or remote_encrypt=true for the pages",
            )
        )
    if options.secret is None:
        found.append(
            Finding(
                "note",
                "the machines share no secret",
                "who can write to the store can plant keys and values of their own",
                "OMLX_CACHE_REMOTE_SECRET on each machine, the same one (openssl rand -hex 32)",
            )
        )
    return found


def _is_here(address: RemoteAddress) -> bool:
    """True for an address on this machine."""
    from urllib.parse import urlsplit

    endpoint = address.options.get("endpoint", "")
    names = [host.name for host in address.hosts] or [urlsplit(endpoint).hostname or ""]
    for name in names:
        try:
            here = ipaddress.ip_address(name).is_loopback
        except ValueError:
            here = name == "localhost"
        if not here:
            return False
    return True


def _judged(measured: Measured, options: RemoteOptions) -> list[Finding]:
    found = []
    lookup = measured.lookup_seconds
    if lookup is not None and lookup > options.lookup_seconds:
        found.append(
            Finding(
                "warning",
                f"a look-up takes up to {duration(lookup)}, and a request waits for "
                f"{duration(options.lookup_seconds)}",
                "requests go on without what the store has (remote_timeout)",
                f"OMLX_CACHE_REMOTE_LOOKUP_SECONDS={1.5 * lookup:.2g}, or a store that is nearer",
            )
        )
    if measured.damaged_values:
        found.append(
            Finding(
                "error",
                f"{measured.damaged_values} values came back otherwise than they were written, or "
                "not at all",
                "pages are checked, so that no wrong answer comes of it; they are computed again",
                "see whether the store is full and evicts at once, and its memory and network",
            )
        )
    if measured.left_values:
        found.append(
            Finding(
                "note",
                f"{measured.left_values} values that were written to measure could not be deleted",
                "they take some megabytes until they expire",
                f"delete what begins with {options.prefix}/doctor-",
            )
        )
    return found


def _requests(measured: Measured) -> list[Finding]:
    """Return what a bucket is like that is asked for one page at a time."""
    return [
        Finding(
            "note",
            f"a look-up asks for {measured.phase_pages} pages at once: each is a request",
            "buckets bill requests, and answer slowly",
            "Valkey or Redis where that matters: docs/remote.md",
        )
    ]


def _from_memory(measured: Measured) -> list[Finding]:
    """Return what to know of the rate of a directory."""
    if measured.read_rate is None:
        return []
    return [
        Finding(
            "note",
            "what was just written to the directory was read from this machine's memory",
            "what another machine wrote comes at the rate of the network or the disk",
            "measure the network by itself: iperf3, or a large file that another machine wrote",
        )
    ]


def _held_up(measured: Measured) -> list[Finding]:
    one, together = measured.read_rate, measured.parallel_rate
    if not one or not together or measured.connections < 2 or together > 0.8 * one:
        return []
    return [
        Finding(
            "note",
            f"{measured.connections} connections bring less than one",
            "reading is held up by something other than the way there",
            "measure the network by itself: `iperf3 -P 8`; then look at the store's machine",
        )
    ]
