"""Why the service ends by itself, each with its exit code."""

from omlx_cache_daemon.errors import CommandError

ALREADY_KEPT = 75


class AlreadyKept(CommandError):
    """Another service keeps the directory."""

    exit_code = ALREADY_KEPT
