"""What people and monitors see of a store: metrics, a page, events. Imports no MLX."""
