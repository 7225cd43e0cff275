"""The models and stores that all tests of sessions use."""

from kit.sessions import cache, model, open_store, store

__all__ = ["cache", "model", "open_store", "store"]
