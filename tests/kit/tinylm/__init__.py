"""Small models with tokenisers on disk, in mlx-lm's format, and servers that serve them."""

from .process import LmServer, free_port, run_server, serve_ours, serve_upstream
from .saved import make_model

__all__ = ["LmServer", "free_port", "make_model", "run_server", "serve_ours", "serve_upstream"]
