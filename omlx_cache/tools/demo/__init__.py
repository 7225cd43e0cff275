"""`omlx-cache demo`: what the cache restores, how fast, and that the tokens stay the same."""
