"""The page format: a file's header, its name, and lossless packing of its payload."""
