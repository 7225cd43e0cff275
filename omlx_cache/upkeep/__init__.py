"""A process's own upkeep of its stores: memory is freed, lost stores are closed."""
