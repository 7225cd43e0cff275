"""A tiny model that answers from its context, so that a damaged KV cache gives wrong answers."""
