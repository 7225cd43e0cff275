"""The version of the page file's format, apart from what reads and writes it."""

FORMAT_VERSION = 1
