"""Whether a request may be answered: by its peer, its `Host`, its origin and its token."""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from omlx_cache.status.answer import Answer, refusal

_SHOWN = 100


def refused(
    headers: Mapping[str, str], peer: str, token: str | None, *, is_page: bool
) -> Answer | None:
    """Return why a request is refused, None for one that may be answered; `headers` are all that
    came, under whatever names."""
    return next(_refusals(headers, peer, token, is_page=is_page), None)


def _refusals(
    headers: Mapping[str, str], peer: str, token: str | None, *, is_page: bool
) -> Iterator[Answer]:
    hosts = [value for name, value in headers.items() if name.lower() == "host"]
    if len(hosts) != 1:
        yield refusal(400, f"one Host header was expected; {len(hosts)} came")
    said, (host,) = {name.lower(): value for name, value in headers.items()}, hosts
    # From another machine, or under a name that may be any host's.
    if token is None and not is_loopback(peer):
        text = "without a token this answers its own machine only: set OMLX_CACHE_STATUS_TOKEN"
        yield refusal(403, text)
    if token is None and not is_safe_host(host):
        text = f"Host was expected to be an address or localhost; got {host[:_SHOWN]!r}"
        yield refusal(403, text)
    # From a page of another origin; following a link to our page is no such request.
    follows_link = is_page and said.get("sec-fetch-mode") == "navigate"
    if said.get("sec-fetch-site", "none") not in ("none", "same-origin") and not follows_link:
        yield refusal(403, "another page's requests are not answered (Sec-Fetch-Site)")
    origin = said.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != host.strip().lower():
        yield refusal(403, f"requests of {origin[:_SHOWN]!r} are not answered (Origin)")
    given = said.get("authorization", "")
    if token is not None and not is_page and not token_matches(given, token):
        yield refusal(
            401,
            "a token was expected, as Authorization: Bearer TOKEN, and "
            f"{'another one' if given else 'none'} came; it is the one of "
            "OMLX_CACHE_STATUS_TOKEN, or in the service's status_token_file; in a browser open "
            "/status#token=TOKEN",
            WWW_Authenticate='Bearer realm="omlx-cache"',
        )


def token_matches(authorization: str, token: str) -> bool:
    """Take as long for every wrong token."""
    scheme, _, given = authorization.strip().partition(" ")
    # Digests are of one length: a comparison of texts would tell that of the token.
    digests = (
        hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
        for text in (given.strip(), token)
    )
    return hmac.compare_digest(*digests) and scheme.lower() == "bearer"


def is_loopback(address: str) -> bool:
    found = _address(address)
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback
    return found is not None and found.is_loopback


def is_safe_host(host: str) -> bool:
    """Tell whether a `Host` header names an address or this machine. The owner of any other name
    may point it at this machine, so that a page of that owner could read the status."""
    try:
        parts = urlsplit(f"//{host.strip()}")
        is_plain = parts.netloc == host.strip() and "@" not in host and (parts.port or 0) >= 0
    except ValueError:
        return False
    name = (parts.hostname or "").removesuffix(".")
    is_local = name == "localhost" or name.endswith(".localhost")
    return is_plain and (is_local or _address(name) is not None)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
