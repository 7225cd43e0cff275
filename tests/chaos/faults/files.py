"""Damage to files of the cache: flipped bits, other lengths, other files' contents."""

import contextlib
import random
from pathlib import Path

from kit.storage import files_in

from ..requests import Requester
from .base import Fault

KINDS = ("flip", "flip", "flip", "cut", "extend", "zeros", "other")


def damage(path: Path, draw: random.Random, kind: str) -> None:
    """Damage one file in place; raises OSError when it has left."""
    raw = bytearray(path.read_bytes())
    if kind == "flip" and raw:
        # Half of them in the header, which is the smaller part.
        place = draw.randrange(draw.choice([min(2_048, len(raw)), len(raw)]))
        raw[place] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del raw[draw.randrange(len(raw) + 1) :]
    elif kind == "extend":
        raw += draw.randbytes(draw.choice([1, 7, 4096]))
    elif kind == "zeros" and raw:
        start = draw.randrange(len(raw)) // 512 * 512
        raw[start : start + 512] = bytes(len(raw[start : start + 512]))
    elif kind == "other":
        # Files of one kind: which others there are depends on the time that a round takes.
        like = path.name if path.suffix == ".json" else f"*{path.suffix}"
        others = sorted(path.parents[draw.choice([1, 2])].rglob(like))
        raw = bytearray(draw.choice(others).read_bytes())
    with open(path, "r+b") as file:
        file.write(raw)
        file.truncate(len(raw))


class LiveDamage(Fault):
    """Damage while the store runs, so that a file changes between two reads of it."""

    name = "damage while running"

    def options(self) -> dict[str, object]:
        # No room to spare for what is appended to files: the budget is looked at elsewhere.
        return {**super().options(), "hot_cache_only": False, "hot_bytes": 0}

    def tick(self, main: Requester) -> None:
        if self.draw.random() < 0.5:
            return
        with contextlib.suppress(OSError, IndexError):
            # Directories come and go while they are listed.
            files = files_in(self.world.cold_dir) + files_in(self.world.cold_dir, "namespace.json")
            for path in self.draw.sample(files, min(len(files), 3)):
                kind = self.draw.choice([kind for kind in KINDS if kind != "extend"])
                damage(path, self.draw, kind)
                self.world.count()
