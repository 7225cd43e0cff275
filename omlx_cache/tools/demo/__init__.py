"""`omlx-cache demo`: the cache's restores, their speed, and a check that the tokens stay the
same."""
