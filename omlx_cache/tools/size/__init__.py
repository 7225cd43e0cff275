"""How much memory a model's KV takes, from its config.json alone. Imports no MLX."""

from .caches import GroupBytes, ModelCaches
from .child import caches_of
from .config import config_path, read_config
from .errors import SizingError
from .estimate import Estimate, GroupEstimate, estimate

__all__ = [
    "Estimate",
    "GroupBytes",
    "GroupEstimate",
    "ModelCaches",
    "SizingError",
    "caches_of",
    "config_path",
    "estimate",
    "read_config",
]
