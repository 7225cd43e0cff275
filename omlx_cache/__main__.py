"""`python -m omlx_cache` is `omlx-cache`.

The only import of the packages above: a start, which no module of this one imports.
"""

import sys

from omlx_cache_daemon.cli import main

if __name__ == "__main__":
    sys.exit(main())
