"""Requests and their results: the records that people and tools read."""
