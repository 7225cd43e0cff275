"""Who may read the status paths: whoever has the token, and without one this machine only."""

import hashlib
import hmac
import ipaddress


def token_matches(authorization: str, token: str) -> bool:
    """Tell whether an `Authorization` header has the token; as long for every wrong one."""
    scheme, _, given = authorization.strip().partition(" ")
    # Digests are of one length: a comparison of texts would tell that of the token.
    same = hmac.compare_digest(_digest(given.strip()), _digest(token))
    return same and scheme.lower() == "bearer"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def is_loopback(address: str) -> bool:
    """Tell whether a peer's or a server's address is one of this machine only."""
    found = _address(address)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback
    return found is not None and found.is_loopback


def is_safe_host(host: str) -> bool:
    """Tell whether a `Host` header names an address or this machine. Any other name may be one that
    its owner points at this machine, so that a page of theirs may read what is here."""
    name = host.strip().lower()
    if name.startswith("["):
        name, _, port = name[1:].partition("]")
        port = port.removeprefix(":")
    else:
        name, _, port = name.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return False
    name = name.removesuffix(".")
    return name == "localhost" or name.endswith(".localhost") or _address(name) is not None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
