"""Which pages stay: policies that know stamps and ages of pages, and no tier."""
