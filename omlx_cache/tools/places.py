"""What a person named as a model: a folder on this machine, or a name on the hub."""

import os
import re

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def is_missing_folder(place: str | None) -> bool:
    """True for what can only be a path, and is not there; mlx-lm would look for it on the hub."""
    if not place or os.path.exists(place):
        return False
    return _HUB_NAME.fullmatch(place) is None
