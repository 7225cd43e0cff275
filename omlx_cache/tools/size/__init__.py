"""How much memory a model's KV takes, from its config.json alone. Imports no MLX."""

from .config import config_path, read_config
from .errors import SizingError
from .estimate import Estimate, GroupEstimate, estimate
from .families import layout_of
from .leaves import Attention, ModelLayout, State

__all__ = [
    "Attention",
    "Estimate",
    "GroupEstimate",
    "ModelLayout",
    "SizingError",
    "State",
    "config_path",
    "estimate",
    "layout_of",
    "read_config",
]
