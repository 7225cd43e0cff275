"""The conformance suite that every adapter must pass."""
