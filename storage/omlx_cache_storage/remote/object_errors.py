"""What the client of object stores raises, in this tier's words.

It tells by text what went wrong: a status, or the kind of what broke the connection. Both are
looked for where the client writes them: a text also has a server's answer, and settings.
"""

import re

from obstore import exceptions as failures

from omlx_cache_storage.remote.engine import RemoteError
from omlx_cache_storage.remote.reasons import Trouble

MISSING = (failures.NotFoundError, FileNotFoundError)
TAKEN = (failures.AlreadyExistsError, FileExistsError)
_STATUS = re.compile(r"non-2xx status code: ([0-9]{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_BEYOND = re.compile(r"source: InvalidRange \{")
_STATUSES: dict[int, Trouble] = {
    401: "auth",
    403: "auth",
    408: "timeout",
    429: "throttled",
    503: "throttled",
    504: "timeout",
    507: "full",
}
_KINDS: tuple[tuple[str, Trouble], ...] = (
    ("TimedOut", "timeout"),
    ("kind: Timeout", "timeout"),
    ("kind: Connect,", "refused"),
    ("kind: Interrupted", "lost"),
    ("ConnectionReset", "lost"),
    ("kind: Request", "lost"),
    ("kind: Body", "lost"),
    ("StorageFull", "full"),
    ("QuotaExceeded", "full"),
)


def status_of(error: Exception) -> int:
    """Return the status that a server answered with, 0 if it is none of a server's."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def is_absent(error: Exception) -> bool:
    """Whether there is no such object, while there is a bucket."""
    return isinstance(error, MISSING) and _code(error) != "NoSuchBucket"


def is_beyond(error: Exception) -> bool:
    """Whether an object ends before the stretch that was asked for."""
    return status_of(error) == 416 or bool(_BEYOND.search(str(error)))


def is_taken(error: Exception) -> bool:
    """Whether an object is there already, or another writer is about to make it."""
    return isinstance(error, TAKEN) or status_of(error) in (409, 412)


def trouble(error: Exception) -> RemoteError:
    """Return what to raise; its text is the first line, which has no credentials."""
    said = str(error)
    told = (_code(error) or type(error).__name__, said.partition("\n")[0][:300])
    return RemoteError(_trouble(error, said), ": ".join(told))


def _code(error: Exception) -> str:
    """Return a server's own word for what is wrong, "" if it said none."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def _trouble(error: Exception, said: str) -> Trouble:
    if isinstance(
        error, (failures.PermissionDeniedError, failures.UnauthenticatedError, PermissionError)
    ):
        return "auth"
    if status := status_of(error):
        return _STATUSES.get(status, "error")
    for kind, word in _KINDS:
        if kind in said:
            return word
    return "error"
