"""The error that travels through the control socket, and the paths that are asked there. Imports
nothing heavy."""

from collections.abc import Mapping
from typing import Final

from omlx_cache_storage.errors import CacheError

STORE: Final = "/store/"
CHANGES: Final = frozenset({"flush", "clear", "prune"})
"""Operations that change something: they are asked by POST only."""
STATUS_OF: Final[Mapping[str, int]] = {
    "bad_request": 400,
    "not_found": 404,
    "ambiguous": 409,
    "failed": 500,
    "busy": 503,
}
"""The HTTP status of each `code` that travels."""


class ControlError(CacheError):
    """A request, or the socket itself, cannot be served. `code` is a short word for programs.
    Raised by an operation, it reaches the client with its own code; any other exception of one
    arrives as `failed`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
