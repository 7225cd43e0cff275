"""`python -m omlx_cache_daemon.service` is `omlx-cached`."""

import sys

from omlx_cache_daemon.service.main import main

if __name__ == "__main__":
    sys.exit(main())
