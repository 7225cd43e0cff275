"""`make demo`: what the cache restores, how fast, and that the tokens stay the same."""

import argparse

__all__ = ["main"]


def main(args: argparse.Namespace) -> int:
    """Run the demo and return its exit code: 1 when a restored run gave other tokens.

    Blocks for as long as a few prefills take. Raises DemoError for input that cannot be used.
    """
    from omlx_cache.tools.demo.command import run

    return run(args)
