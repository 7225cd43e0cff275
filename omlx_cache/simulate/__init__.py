"""Replays traces of requests through the tiers in virtual time. Imports no MLX."""
