"""The page format: a file's header, its name, and lossless packing of its payload."""

FORMAT_VERSION = 1
"""The version of the page file's format, apart from what reads and writes it."""
