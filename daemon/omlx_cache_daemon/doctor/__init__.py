"""What may be wrong on this machine: each check is a function that yields what it finds."""
