"""Words for people: the model and the versions in a namespace's document, and byte counts.

Anything may have been written to the file: each value is checked, and bounded. Imports nothing
heavy: the command line starts with it.
"""

from collections.abc import Mapping

FORMAT, MLX, MLX_LM = "format", "mlx", "mlx-lm"
Versions = dict[str, str]
"""`format`, `mlx` and `mlx-lm`, as text; the pages of other versions are never restored."""

_LABEL_CHARACTERS = 200
_VERSION_CHARACTERS = 40
_SALT_DIGITS = 16


def label(document: Mapping[str, object]) -> str:
    label, model_id, model = (
        name if isinstance(name, str) else ""
        for name in map(document.get, ("label", "model_id", "model"))
    )
    return (label or model_id or model[:12])[:_LABEL_CHARACTERS]


def names_model(name: object) -> bool:
    """True for a path or a hub id, False for a class with its module: a model that nobody named."""
    return isinstance(name, str) and not (
        "." in name and all(part.isidentifier() for part in name.split("."))
    )


def versions(document: Mapping[str, object]) -> Versions:
    software = document.get("software")
    packages = software if isinstance(software, dict) else {}
    return as_versions({**packages, FORMAT: document.get("format")})


def as_versions(value: object) -> Versions:
    if not isinstance(value, dict):
        return {}
    found = {name: value.get(name) for name in (FORMAT, MLX, MLX_LM)}
    if not all(type(version) in (str, int) for version in found.values()):
        return {}
    return {name: str(version)[:_VERSION_CHARACTERS] for name, version in found.items()}


def salt(document: Mapping[str, object]) -> str:
    """Return the kind and the beginning of a salt's digest, enough to tell tenants apart; empty for
    pages without a salt."""
    digest = document.get("salt")
    return shortened_salt(digest) if isinstance(digest, str) else ""


def shortened_salt(digest: str) -> str:
    kind, colon, digits = digest[:_LABEL_CHARACTERS].partition(":")
    return f"{kind}{colon}{digits[:_SALT_DIGITS]}"


def format_size(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.2f}".rstrip("0").rstrip(".") + f" {unit}"
