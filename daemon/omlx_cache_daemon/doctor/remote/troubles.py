"""What it means that a store did not do what it was asked, and what helps."""

from omlx_cache_daemon.doctor.finding import Finding
from omlx_cache_storage.remote.address import RemoteAddress
from omlx_cache_storage.remote.engine import RemoteError
from omlx_cache_storage.remote.reasons import Trouble

_WITHOUT = "requests go on without it"
_COMMANDS = (
    "+ping +info +get +set +getrange +strlen +exists +unlink +pexpire +zadd +zrange "
    "+zremrangebyrank +cluster|slots +cluster|shards"
)


def unreached(address: RemoteAddress, error: RemoteError, *, has_password: bool) -> Finding:
    """Return what is wrong with a store that does not answer a ping."""
    remedy = _remedy(address, error, has_password=has_password)
    return Finding("error", f"{address} {_said(error)}", _WITHOUT, remedy)


def unwritten(address: RemoteAddress, error: RemoteError, *, writes: bool) -> Finding:
    """Return what is wrong with a store that answers, and then does not give or take values."""
    denied = error.reason == "auth"
    what = "lets this machine in, and not write or read" if denied else _said(error)
    return Finding(
        "error" if writes or not denied else "note",
        f"{address} {what}" + (f": {error}" if denied else " as values were written and read"),
        "nothing of this machine comes there"
        if writes
        else "this machine only reads, as it is "
        "set (remote_writes=off); how quickly was not measured",
        _remedy(address, error, lets_in=True),
    )


def _said(error: RemoteError) -> str:
    said: dict[Trouble, str] = {
        "refused": "is not reached",
        "timeout": "does not answer in time",
        "auth": "does not let this machine in",
        "throttled": "is not ready, or asked too much",
        "lost": "breaks the connection",
        "full": "has no room",
        "error": "answers with an error",
    }
    return f"{said[error.reason]} ({error})"


def _remedy(
    address: RemoteAddress, error: RemoteError, *, lets_in: bool = False, has_password: bool = False
) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate" in text.lower():
        return (
            "name the authority that signed it: ?ca=/path/ca.pem; and see that the clock is right"
        )
    is_redis = address.kind not in ("s3", "file")
    if error.reason == "auth":
        return _let_in(address, lets_in=lets_in, has_password=has_password)
    if error.reason in ("refused", "timeout"):
        place = address.hosts[0] if address.hosts else None
        look = f"; nc -vz {place.name} {place.port}" if place is not None else ""
        slow = "; a larger OMLX_CACHE_REMOTE_LOOKUP_SECONDS" if error.reason == "timeout" else ""
        return f"see that it runs, and that no firewall is between{look}{slow}"
    if error.reason == "full":
        policy = "CONFIG SET maxmemory-policy volatile-lru"
        return policy if is_redis else "make room: a lifecycle rule, or a larger disk"
    if error.reason == "lost" and is_redis:
        return "rediss:// where the server wants TLS, redis:// where it does not; see its log"
    return "see the store's log"


def _let_in(address: RemoteAddress, *, lets_in: bool, has_password: bool) -> str:
    if address.kind == "file":
        return f"let this user write to {address.path}"
    if address.kind == "s3":
        return "check the access key and its rights: GetObject, PutObject, DeleteObject, ListBucket"
    if lets_in:
        return f"ACL SETUSER NAME ~PREFIX/* {_COMMANDS}"
    if has_password:
        user = "default" if address.user is None else address.user
        return (
            f"the password that is set is not the one of the user {user}, or there is no such user "
            "(ACL LIST on the server); another one is named in the address: redis://USER@HOST"
        )
    return (
        "set OMLX_CACHE_REMOTE_PASSWORD, file:PATH for one in a file, and name the user in the "
        "address: redis://USER@HOST"
    )
