"""mlx-lm's OpenAI-compatible server with this project's cache: `omlx-cache serve` and `warm`."""
