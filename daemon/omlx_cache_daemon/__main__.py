"""`python -m omlx_cache_daemon` is `omlx-cache`."""

import sys

from omlx_cache_daemon.cli import main

if __name__ == "__main__":
    sys.exit(main())
