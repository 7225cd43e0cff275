"""Why a model's KV memory cannot be computed."""


class SizingError(ValueError):
    """No readable config.json, a field that is missing, or a layout that is not understood."""
