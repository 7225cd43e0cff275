"""A store's face to people and monitors: metrics, a page, events. Imports no MLX."""
