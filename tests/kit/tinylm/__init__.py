"""Small models with tokenisers on disk, in mlx-lm's format, and servers that serve them."""

from .process import Server, serve_ours, serve_upstream
from .saved import make_model

__all__ = ["Server", "make_model", "serve_ours", "serve_upstream"]
