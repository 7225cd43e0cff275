"""The command line, the control protocol and its client; importing it never imports MLX."""
