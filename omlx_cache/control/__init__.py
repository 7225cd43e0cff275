"""A process's answers to commands and browsers: the sockets, the server, the operations."""
