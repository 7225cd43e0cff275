"""Remote stores for tests: one in memory, and real ones on loopback."""

from .memory_engine import MemoryEngine, MemoryStore

__all__ = ["MemoryEngine", "MemoryStore"]
