"""The MLX surface: dtypes, host views and memory that is about to be overwritten."""
