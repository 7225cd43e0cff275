"""A process with a store, for as long as its standard input is open."""

import sys

from omlx_cache import BlockStore, CacheSettings

if __name__ == "__main__":
    with BlockStore(CacheSettings(hot_bytes="16MiB"), name=sys.argv[1]):
        print("open", flush=True)
        sys.stdin.read()
