"""What may be wrong on this machine: each check is a function from a `Context` to findings."""
