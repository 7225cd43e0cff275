"""The cold tier: page files in a directory, under a budget of physical bytes."""
