"""`docs/fidelity.md`: rendered from the records of `docs/fidelity.csv`."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kit import zoo

from .cases import BLOCK, LONG_ANSWER, POSITIONS
from .conversation import ANSWER, LENGTHS
from .record import Record
from .storage import BLOCK as REAL_BLOCK
from .storage import CONFIGS, CONTEXT, STRIDE, footprint

PATH = Path(__file__).parents[2] / "docs" / "fidelity.md"
NAMED = 4
"""So many families of a mixture are named on the page."""

Cells = tuple[str, ...]

_INTRODUCTION = f"""# What is restored, and how exactly

The cache treats model families with the same mixture of cache classes alike. So the tables have a
line for each mixture, and [fidelity.csv](fidelity.csv) has each family. `python -m fidelity` (with
`tests` on the path) writes both. Every test run measures one family of each mixture and precision
anew, and the nightly run measures all families. The models are real mlx-lm classes at very small
sizes with random weights, on MLX's CPU back end.

## The matrix

Each family answers five kinds of prompt (blocks of {BLOCK} tokens, chunks of {BLOCK}):

- **prefill boundary**: it continues a prompt that ended at a block boundary;
- **mid-sequence branch**: it differs from a cached prompt from the middle of a block on. Recurrent
  state is restored only where a snapshot was taken, and the first such prompt shows where one is
  needed. The table has the second such prompt, and behind it the first one if that restored less;
- **end of answer**: the next turn of a conversation, generated tokens included;
- **after wrap-around**: the next turn after {LONG_ANSWER} generated tokens, when the rotating
  caches of windows have wrapped and the first step is a single token;
- **exact repeat**: the same prompt again; all but the last token are restored.

Each prompt is restored from four places: the hot tier, files in the same process, files in a new
process, and a store with `hot_cache_only`. A cell has the restored tokens, then a mark for each
place. `=` means that the logits after every later step have the bits of a live cache after the same
steps. `x` means that they differ.

*Controls* are restores that must fail, for the last page of every layer group in each cell. On the
disk a flipped bit, and the file of another position, must be a miss. The payload of another
position under a sound checksum, or inverted bits in memory, must change the logits. The column
says how many controls failed as they must.
"""


def mixture_rows(records: Iterable[Record], cells: Callable[[Record], Cells]) -> list[str]:
    """Return a line for each mixture of cache classes and what was measured of it."""
    families: dict[tuple[str, Cells], list[str]] = {}
    for each in records:
        families.setdefault((each.classes, cells(each)), []).append(each.family)
    return [
        f"| {classes} | {_named(names)} | " + " | ".join(measured) + " |"
        for (classes, measured), names in families.items()
    ]


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return f"{len(names)}: {shown}" + (", ..." if len(names) > NAMED else "")


def broken_rows() -> list[str]:
    """Return the families of the zoo that mlx-lm itself cannot run here."""
    return [
        f"- **{family.name}**: not measured, mlx-lm itself fails here: {family.broken}"
        for family in zoo.FAMILIES.values()
        if family.broken
    ]


def storage_rows() -> list[str]:
    """Return the lines of the storage table."""
    rows = []
    for model in CONFIGS:
        row = footprint(model)
        groups = ", ".join(
            f"{name} {_kib(size)}" for name, size in sorted(row.groups.items(), key=str)
        )
        rows.append(
            f"| {model} | {groups} | {_kib(row.stored / CONTEXT)} | {_kib(row.needed / CONTEXT)} "
            f"| {_kib(row.everything / CONTEXT)} | {row.everything / row.stored:.1f}x |"
        )
    return rows


def _kib(nbytes: float) -> str:
    return f"{nbytes / 1024:,.1f} KiB"


def render(records: Sequence[Record]) -> str:
    """Return the whole page."""
    parts = [
        _INTRODUCTION,
        "| cache classes | families | " + " | ".join(POSITIONS) + " | controls |",
        "|---|---|" + "---|" * (len(POSITIONS) + 1),
        *mixture_rows(records, lambda each: each.cells),
        "",
        *broken_rows(),
        _CONVERSATIONS,
        "| cache classes | families | " + " | ".join(f"{length:,}" for length in LENGTHS) + " |",
        "|---|---|" + "---|" * len(LENGTHS),
        *mixture_rows(records, lambda each: each.turns),
        _STORAGE,
        "| model | bytes per token (state: per snapshot) | stored | needed | everything per block "
        "| ratio |",
        "|---|---|---|---|---|---|",
        *storage_rows(),
        _EXACTNESS,
    ]
    return "\n".join(parts).rstrip() + "\n"


_CONVERSATIONS = f"""
## Two turns of a conversation

Default settings: blocks of {REAL_BLOCK} tokens, regular snapshots every {STRIDE}. A prompt of
300, 3,000 or 8,000 tokens, {ANSWER} generated tokens, then a second prompt. A cell has restored and
shared tokens for two kinds of second prompt. The first kind repeats the answer as it was. The
second kind repeats only the first prompt, as chat templates that drop the reasoning do.
"""

_STORAGE = f"""
## Storage per cached token

For the published configurations, in bf16, over a prompt of {CONTEXT:,} tokens:

- *stored* is every page that a commit makes: each token once in every paged group, and a window's
  blocks and a snapshot at the restore points of the default policy;
- *needed* is what a restore to the end of the prompt reads: the last blocks of a window, one
  snapshot;
- *everything per block* is a cache that keeps whole windows and the recurrent state with every
  block.
"""

_EXACTNESS = """
## What "exact" means here

A restored cache equals the cache of an uninterrupted run that fed the same tokens in the same
steps. The steps matter, with a cache or without:

- Chunked state-space scans (Mamba 2 and its hybrids, Bailing's linear attention) count blocks from
  the start of a chunk. Chunks that end at multiples of 256 tokens from the start of the sequence
  give the same last bits; other chunk ends do not.
- Decoding token by token and a prefill can differ in the last bits: in latent attention (DeepSeek
  and others), state-space layers, and most windowed layers in float32. An answer's keys and values
  are restored as decoding made them.
- A ring that wrapped while decoding keeps its rotation where a request ended, one token before
  that, and at block boundaries. One token before an end where the ring was just full again, once
  per window, its tokens are restored in temporal order, and attention in float32 then sums in
  another order.
- On GPUs matrix products of other shapes may round differently in every family.

A cache of recurrent state alone does not say how many tokens it has seen. A session notices when
no token was fed, but not that one was fed and never recorded.
"""
