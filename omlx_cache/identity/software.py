"""The versions that are installed here, read without importing what they are of."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from omlx_cache_storage.documents import MLX, MLX_LM, Versions, versions
from omlx_cache_storage.format.version import FORMAT_VERSION


def software() -> dict[str, str]:
    """Return the versions of what computes KV; empty text for what is not installed."""
    return {name: version_of(name) for name in (MLX, MLX_LM)}


def installed() -> Versions:
    """Return the versions of the namespaces that this environment makes."""
    return versions({"format": FORMAT_VERSION, "software": software()})


@cache
def version_of(package: str) -> str:
    """Return a package's version, empty when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
