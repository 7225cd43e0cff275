"""Commit: from a live cache to pages in the tiers, while the model computes and at the end."""
