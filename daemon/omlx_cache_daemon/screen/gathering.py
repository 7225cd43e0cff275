"""What several stores say at one moment, each asked in a thread of its own."""

import time
from collections.abc import Sequence

from omlx_cache_daemon.screen.lookout import Lookout
from omlx_cache_daemon.screen.view import View, view_of
from omlx_cache_daemon.stores import RunningStore

_ONCE_SECONDS = 3600.0


def gathered(stores: Sequence[RunningStore], timeout: float) -> View:
    """Return the figures of all of these stores; one that does not answer in time has an error."""
    lookout = Lookout(lambda: stores, _ONCE_SECONDS, timeout)
    try:
        # A little longer than each waits, so that it can say so.
        lookout.wait(timeout + 1)
        return view_of(lookout.processes(), None, time.time())
    finally:
        lookout.stop()
