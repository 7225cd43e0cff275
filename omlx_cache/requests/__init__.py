"""Requests and their results, as people and tools read them."""
