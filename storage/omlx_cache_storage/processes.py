"""Whether another process of this machine is there."""

import os


def is_running(pid: int) -> bool:
    """True when a process has this id, another user's too."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
