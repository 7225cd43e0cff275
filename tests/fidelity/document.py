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

Families of models whose layers keep the same mixture of cache classes take the same way through
the cache, so the tables have a line for each mixture; what was measured of each family is in
[fidelity.csv](fidelity.csv). `python -m fidelity` (with `tests` on the path) writes both, and the
records are compared with new measurements: those of one family for each mixture and precision in
every test run, those of all families in the nightly one. The models are real mlx-lm classes at
very small sizes with random weights, run on MLX's CPU back end.

## The matrix

A family is asked five kinds of question (blocks of {BLOCK} tokens, chunks of {BLOCK}):

- **prefill boundary**: a prompt that continues one that ended at a block boundary;
- **mid-sequence branch**: a prompt that leaves a cached one in the middle of a block. Layers with
  recurrent state can be restored only where a snapshot was taken, and the first visit reveals
  where that should be: the table has the second visit, and the first one behind it where it
  restored less;
- **end of answer**: the next turn of a conversation, generated tokens included;
- **after wrap-around**: the same after {LONG_ANSWER} generated tokens, when the rings of windowed
  layers have gone round, and the first step is a single token;
- **exact repeat**: the same prompt again, of which all but the last token are restored.

Each is answered from four places: the hot tier, files in the same process, files in a new
process, and a store with `hot_cache_only`. A cell has the tokens restored, then one mark for each
place in that order: `=` when the logits after every following step have the bits that the live
cache, continued by the same steps, gives; `x` when not.

*Controls* are restores that must fail. For the last page of every layer group in each cell: a
flipped bit and another position's file in the page's place must be a miss on the disk, and another
position's payload under a sound checksum (or, in memory, inverted bits) must change the logits.
The column says how many of them did.
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
300, 3,000 or 8,000 tokens, {ANSWER} generated tokens, then a second prompt. In each cell first the
tokens restored of those shared when the second prompt repeats the answer as it was, then of those
shared when it repeats only the first prompt (chat templates that drop the reasoning do that).
"""

_STORAGE = f"""
## Storage per cached token

For the published configurations, in bf16, over a prompt of {CONTEXT:,} tokens. *Stored* is every
page that a commit makes: each token once in every paged group, and at the restore points of the
default policy the blocks of a window and a snapshot. *Needed* is what a restore to the end of the
prompt reads: of windows only the last blocks, of snapshots one. *Everything per
block* is what a cache stores that keeps, with every block, all that its layers hold at that point:
whole windows and the recurrent state.
"""

_EXACTNESS = """
## What "exact" means here

A restored cache equals the cache of an uninterrupted run that fed the same tokens in the same
steps. The steps matter, and not because of the cache:

- Chunked state-space scans (Mamba 2 and its hybrids, Bailing's linear attention) count their
  blocks from the start of a chunk, so other chunk ends give other last bits. Chunks that end at
  multiples of 256 tokens from the start of the sequence do not.
- Keys and values that were built token by token while decoding can differ in the last bits from
  those that a prefill of the same tokens builds: latent attention (DeepSeek and others decode in
  an absorbed form), state-space layers and most windowed layers in float32. After an answer the
  cache holds the former; they are restored as they are, and are not what a recomputation of the
  whole conversation would give, bit for bit.
- A ring that went round while decoding keeps its rotation where a request ended and at block
  boundaries. At other positions of an answer (an exact repeat of a whole conversation stops one
  token before its end) its tokens are restored in temporal order, and attention in float32 then
  sums them in another order than the live ring did.
- On GPUs matrix products of other shapes may round differently in every family.

A cache of recurrent state alone does not say how many tokens it has seen. A session can tell that
nothing was fed at all, but not that a token was fed and never recorded.
"""
