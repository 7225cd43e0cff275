"""Sizes in bytes and times in nanoseconds."""

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
SECOND = 10**9
DAY = 10**18
"""A day in 2001, as files have it."""
