"""The control socket of a store: its server, its frames, and where its sockets lie.

Imports neither MLX nor pydantic; the command line's client uses the same frames and paths.
"""

from omlx_cache.control.connection import Timeouts
from omlx_cache.control.errors import ControlError
from omlx_cache.control.server import (
    ControlServer,
    Handler,
    check_socket,
    start_control,
    start_service_control,
)

__all__ = [
    "ControlError",
    "ControlServer",
    "Handler",
    "Timeouts",
    "check_socket",
    "start_control",
    "start_service_control",
]
