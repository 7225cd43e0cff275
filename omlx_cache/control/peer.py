"""Who is at the other end of a Unix socket, as the kernel says."""

import socket
import struct
import sys

_LINUX_UCRED = struct.Struct("3i")
_XUCRED_SIZE = 76
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1


def peer_uid(connection: socket.socket) -> int:
    """Return the peer's effective user id; raises OSError when the kernel does not say."""
    if sys.platform == "darwin":
        return parse_xucred(connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_SIZE))
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _LINUX_UCRED.size)
    _, uid, _ = _LINUX_UCRED.unpack(raw)
    return int(uid)


def parse_xucred(raw: bytes) -> int:
    """Return the uid of macOS's `struct xucred`: version, uid, groups. Raises OSError."""
    if len(raw) < 8:
        raise OSError("LOCAL_PEERCRED gave no credentials")
    version, uid = struct.unpack_from("=II", raw)
    if version != 0:
        raise OSError(f"LOCAL_PEERCRED gave credentials of unknown version {version}")
    return int(uid)
