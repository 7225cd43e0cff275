"""Scripts that complete words of a command line in a shell, made from the parsers."""
