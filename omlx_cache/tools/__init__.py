"""What people run: demo, size and bench. Only the command line imports it."""
