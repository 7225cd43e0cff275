"""What the client of Valkey and Redis raises, in the words of the remote tier."""

import socket
import ssl

from redis import exceptions as failures
from redis.sentinel import MasterNotFoundError

from omlx_cache_storage.remote.engine import RemoteError
from omlx_cache_storage.remote.reasons import Trouble

_BY_WORD: dict[str, Trouble] = {
    "NOAUTH": "auth",
    "WRONGPASS": "auth",
    "NOPERM": "auth",
    "DENIED": "auth",
    "OOM": "full",
    "MISCONF": "full",
    "LOADING": "throttled",
    "BUSY": "throttled",
    "TRYAGAIN": "throttled",
    "CLUSTERDOWN": "throttled",
    "MASTERDOWN": "throttled",
    "NOREPLICAS": "throttled",
    "READONLY": "lost",
    "MOVED": "throttled",
    "ASK": "throttled",
}
_BY_KIND: tuple[tuple[type[Exception], Trouble], ...] = (
    (failures.AuthenticationError, "auth"),
    (failures.AuthorizationError, "auth"),
    (failures.NoPermissionError, "auth"),
    (failures.OutOfMemoryError, "full"),
    (failures.BusyLoadingError, "throttled"),
    (failures.TryAgainError, "throttled"),
    (failures.ClusterDownError, "throttled"),
    (failures.ReadOnlyError, "lost"),
    (failures.MovedError, "throttled"),
    (failures.AskError, "throttled"),
    (failures.ResponseError, "error"),
    (MasterNotFoundError, "error"),
    (failures.InvalidResponse, "lost"),
    (failures.TimeoutError, "timeout"),
)
_NOBODY = (ConnectionRefusedError, socket.gaierror)
"""The name of the host is not known, or nobody listens there."""
_QUOTED = ", with args beginning with"
_FULL_HOUSE = ("max number of clients", "Connection not ready")
"""The second is the client's word for a server that speaks, or hangs up, before it is asked."""
_NO_CERTIFICATE = ("ALERT_CERTIFICATE_REQUIRED", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA")
"""A server says so that takes none but clients with a certificate of its authority."""
_NO_WAY = (
    "Connection refused",
    "Host is unreachable",
    "No route to host",
    "Network is unreachable",
    "Host is down",
)


def trouble(error: Exception, password: str | None) -> RemoteError:
    """Return what to raise instead of an error of the client. A server that does not know a command
    quotes the beginning of its arguments, which may be the password's or a page's: that is cut off.
    """
    if isinstance(error, RemoteError):
        return error
    text = f"{type(error).__name__}: {error}".partition(_QUOTED)[0]
    if password:
        text = text.replace(password, "***")
    return RemoteError(_reason(error), text)


def _reason(error: Exception) -> Trouble:
    if isinstance(error, failures.RedisClusterException) and isinstance(error.__cause__, Exception):
        # What asking for the map of slots ended with.
        return _reason(error.__cause__)
    said = str(error)
    word = said.partition(" ")[0]
    if isinstance(error, failures.ResponseError) and word in _BY_WORD:
        return _BY_WORD[word]
    if any(text in said for text in _FULL_HOUSE):
        return "throttled"
    for kind, reason in _BY_KIND:
        if isinstance(error, kind):
            return reason
    if any(text in said for text in _NO_CERTIFICATE):
        return "auth"
    cause = _cause(error)
    if isinstance(cause, _NOBODY) or any(text in said for text in _NO_WAY):
        return "refused"
    if isinstance(cause, TimeoutError) or said == "No connection available.":
        return "timeout"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "error"
    return "lost" if isinstance(error, failures.ConnectionError | OSError) else "error"


def _cause(error: BaseException) -> BaseException:
    """Return what an error was raised because of, in the end."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error
