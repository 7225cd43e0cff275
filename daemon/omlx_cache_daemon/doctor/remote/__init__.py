"""A remote store, examined and measured: what `doctor --remote` says."""
