"""`python -m fuzz.guided TARGET [-runs=N]`: the same oracles, led by coverage through atheris.

atheris is no dependency, since not every machine has a wheel of it: `pip install atheris`.
"""

import logging
import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["omlx_cache", "omlx_cache_storage", "json"]):
    from .registry import TARGETS

_LONGEST = 64 * 1024


def main() -> None:
    """Run libFuzzer on a target, from its samples; ends with the first finding."""
    logging.disable()
    target = TARGETS[sys.argv[1]]

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < 0.5:
            try:
                return target.vary(rng, data)[:longest]
            except Exception:
                # What was spoilt once need not have the structure that `vary` knows.
                data = rng.choice(samples)
        return bytes(atheris.Mutate(data, longest))

    samples = list(target.samples())
    with tempfile.TemporaryDirectory() as corpus:
        for number, sample in enumerate(samples):
            Path(corpus, str(number)).write_bytes(sample)
        arguments = [sys.argv[0], corpus, f"-max_len={_LONGEST}", *sys.argv[2:]]
        atheris.Setup(arguments, target.one, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
