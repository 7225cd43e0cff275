"""`omlx-cache demo`: restores, their speed, and a check that the tokens stay the same."""
