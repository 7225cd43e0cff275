"""How fast a model computes, kept with one of its namespaces for the processes to come.

`prefill.json` lies beside `namespace.json` and goes with it. It is written by whoever measured
last, without a word to the tier: a small file now and then, which the room that is left for
directories holds, and which the next start counts.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from omlx_cache_storage.cold.catalog import namespace_directories
from omlx_cache_storage.cold.disk import FileSystem
from omlx_cache_storage.cold.document import read_document
from omlx_cache_storage.cold.temporary import TemporaryNames
from omlx_cache_storage.format.names import NAMESPACE_FILE, RATE_FILE
from omlx_cache_storage.work import PrefillRate

MOST_FILES = 1024
"""A directory with more of them than there are models tells nothing new with the rest."""
_FASTEST = 1e9
_MOST_TOKENS = 10**15
_MOST_SECONDS = 10**12


class KeptRate(NamedTuple):
    """A model, as `computed_by` names it, and its rate."""

    model: str
    rate: PrefillRate


def read_rates(cold_dir: Path, fs: FileSystem | None = None) -> Iterator[KeptRate]:
    """Yield the rates of a cold directory, as far as they are figures; reads files, raises
    OSError."""
    fs = fs or FileSystem()
    left = MOST_FILES
    for _digest, directory in namespace_directories(cold_dir, fs):
        kept = parse_rate(read_document(os.path.join(directory, RATE_FILE), fs))
        if kept is not None:
            yield kept
            left -= 1
            if not left:
                return


def write_rate(
    cold_dir: Path,
    namespace: str,
    kept: KeptRate,
    names: TemporaryNames,
    fs: FileSystem | None = None,
) -> bool:
    """Replace a namespace's rate, whole or not at all; False for one that is not on the disk.

    Raises OSError. `names` lives for as long as somebody may write with it.
    """
    fs = fs or FileSystem()
    directory = os.path.join(cold_dir, namespace)
    if not fs.is_own_directory(directory) or not fs.exists(os.path.join(directory, NAMESPACE_FILE)):
        return False
    fields = {"model": kept.model, "tokens": kept.rate.tokens, "seconds": kept.rate.seconds}
    raw = json.dumps(fields, indent=2).encode() + b"\n"
    names.replace(os.path.join(directory, RATE_FILE), raw, fs)
    return True


def parse_rate(document: dict[str, object]) -> KeptRate | None:
    """Return what a file says, None for what cannot have been measured."""
    model, tokens, seconds = (document.get(name) for name in ("model", "tokens", "seconds"))
    if isinstance(tokens, bool) or not isinstance(tokens, int) or isinstance(seconds, bool):
        return None
    if not isinstance(model, str) or not isinstance(seconds, int | float):
        return None
    if not 0 < tokens <= _MOST_TOKENS or not 0 < seconds <= _MOST_SECONDS:
        return None
    if tokens / seconds > _FASTEST:
        return None
    return KeptRate(model, PrefillRate(tokens, float(seconds)))
