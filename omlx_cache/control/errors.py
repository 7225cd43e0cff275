"""The error that travels through the control socket."""

from omlx_cache_storage.errors import CacheError


class ControlError(CacheError):
    """A request, or the socket itself, cannot be served. `code` is a short word for programs.

    Raised by a handler, it reaches the client with its own code; any other exception of a
    handler arrives as `failed`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
