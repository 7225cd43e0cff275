"""The service on a disk that hangs from its first look on; as patient as tests are."""

import sys
import threading

from omlx_cache_daemon.service import process
from omlx_cache_daemon.service.keeping import KeepingTier
from omlx_cache_daemon.service.main import main


def _hang(tier: KeepingTier) -> int:
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    assert "mlx" not in sys.modules, "no service needs it"
    process.HUNG_SECONDS = 0.5
    KeepingTier.keep = _hang  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
