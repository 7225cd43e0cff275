"""The status page: one file with nothing from elsewhere, and the policy that holds it to that."""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import NamedTuple

_INLINE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL | re.IGNORECASE)


class StatusPage(NamedTuple):
    """The page's bytes, and its Content-Security-Policy."""

    body: bytes
    policy: str


@cache
def status_page() -> StatusPage:
    """Return the page, read once. Its own scripts and styles run, by their hashes, and no others:
    it may ask this server only, load nothing, and be framed by nobody."""
    text = resources.files("omlx_cache.status").joinpath("page.html").read_text("utf-8")
    sources: dict[str, list[str]] = {"script": [], "style": []}
    for kind, inside in _INLINE.findall(text):
        digest = b64encode(sha256(inside.encode()).digest()).decode()
        sources[kind.lower()].append(f"'sha256-{digest}'")
    policy = "; ".join(
        (
            "default-src 'none'",
            *(f"{kind}-src {' '.join(found)}" for kind, found in sources.items() if found),
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return StatusPage(text.encode(), policy)
