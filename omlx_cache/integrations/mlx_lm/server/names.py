"""What clients call a model: the name of the command line, or the short one that people see."""

from pathlib import Path

from omlx_cache.integrations.mlx_lm.server.offered import DEFAULT
from omlx_cache.integrations.mlx_lm.server.refusals import NoSuchModel
from omlx_cache.integrations.naming import model_name

_SHOWN = 200


def labels(model: str | None) -> set[str]:
    """Return what `omlx-cache ps` and `ls` call the model of the command line. A folder that has
    such a name is meant itself, and not this model."""
    if not model:
        return set()
    name = model_name(model)
    found = {name, name.rstrip("/").rpartition("/")[2]} - {"", model, DEFAULT}
    return {label for label in found if not Path(label).exists()}


def no_such_model(name: str | None, served: str | None) -> NoSuchModel:
    """Return the refusal of a model that is not there; `served` is that of the command line."""
    if not name:
        return NoSuchModel("no model was named, and this server was started without --model")
    has = f"{served} ({DEFAULT} means it too)" if served else "none of its own (serve --model)"
    return NoSuchModel(f"there is no model {name[:_SHOWN]} here; this server has {has}")
