"""Power cuts: what a disk may hold when the power goes, and what the store makes of that."""
