"""The models and stores that tests of hints use."""

from kit.sessions import cache, model, open_store, store

__all__ = ["cache", "model", "open_store", "store"]
