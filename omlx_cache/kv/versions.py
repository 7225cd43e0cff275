"""What the working caches have of their own where an mlx-lm before 0.32 lacks it."""

from typing import TYPE_CHECKING, Any

from mlx_lm.models import cache as upstream

from .buffers import Array


class _Read:
    """Mixin: what upstream calls `state` before 0.32 is cut to the tokens already."""

    state: Any

    def keys_and_values(self) -> tuple[Array, Array]:
        """Return the tokens in use, as views."""
        keys, values, *_padding = self.state
        return keys, values


class _Inherited:
    """Mixin: upstream's own."""

    if TYPE_CHECKING:

        def keys_and_values(self) -> tuple[Array, Array]: ...


KeysAndValues: Any = _Inherited if hasattr(upstream.KVCache, "keys_and_values") else _Read
