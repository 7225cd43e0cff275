"""Restore: a plan of what goes where, and the executors that carry it out."""
