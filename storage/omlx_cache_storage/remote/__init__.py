"""The remote tier: pages in a store that other machines use too, on an engine that people run."""
