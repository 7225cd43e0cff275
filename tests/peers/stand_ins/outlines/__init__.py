"""Stands for outlines in mlx-openai-server: it is for JSON schemas only, and brings torch."""
