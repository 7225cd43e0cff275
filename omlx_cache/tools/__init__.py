"""Programs for people: demo, size and bench. Only the command line imports them."""
