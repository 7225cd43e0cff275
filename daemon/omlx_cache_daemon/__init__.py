"""The command line and the service; importing it never imports MLX."""
