"""`omlx-cached`: a service that keeps the cache's directory when no server runs, and shows what all
processes of a machine do. No page goes through it, and nothing needs it. Imports no MLX."""
