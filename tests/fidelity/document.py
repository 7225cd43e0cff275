"""`docs/fidelity.md`: written from measurements, and read back by a test."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from kit import zoo

from .cases import BLOCK, LONG_ANSWER, POSITIONS
from .conversation import ANSWER, LENGTHS, Retention
from .matrix import TIERS, FamilyResult
from .storage import BLOCK as REAL_BLOCK
from .storage import CONFIGS, CONTEXT, STRIDE, footprint

PATH = Path(__file__).parents[2] / "docs" / "fidelity.md"

_INTRODUCTION = f"""# What is restored, and how exactly

Written by `python -m fidelity` (with `tests` on the path), and compared with new measurements:
those of one family for each mixture of cache classes in every test run, those of all families in
the nightly one. The models are real mlx-lm classes at very small sizes with random weights, run on
MLX's CPU back end.

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


def family_row(result: FamilyResult) -> str:
    """Return one line of the matrix."""
    if result.problem:
        return f"| {result.name} | {result.problem} |" + " |" * len(POSITIONS)
    cells = [_cell(result, position) for position in POSITIONS]
    measured = [cell for tiers in result.cells.values() for cell in tiers.values()]
    controls = sum(cell.controls for cell in measured)
    failed = controls - sum(len(cell.missed) for cell in measured)
    return f"| {result.name} | " + " | ".join(cells) + f" | {failed} of {controls} |"


def _cell(result: FamilyResult, position: str) -> str:
    tiers = [result.cells[position][tier] for tier in TIERS]
    counts = sorted({cell.restored for cell in tiers}, reverse=True)
    text = "/".join(map(str, counts)) + " " + "".join("x="[cell.exact] for cell in tiers)
    if position == "mid-sequence branch" and result.first_visit < counts[0]:
        text += f" (first {result.first_visit})"
    return text


def broken_rows() -> list[str]:
    """Return the families of the zoo that mlx-lm itself cannot run here."""
    return [
        f"- **{family.name}**: not measured, mlx-lm itself fails here: {family.broken}"
        for family in zoo.FAMILIES.values()
        if family.broken
    ]


def retention_row(name: str, found: Sequence[Retention]) -> str:
    """Return one line of the conversation table."""
    cells = [f"{r.continued} of {r.prompt + ANSWER}, {r.edited} of {r.prompt}" for r in found]
    cells += ["longer than its position table"] * (len(LENGTHS) - len(cells))
    return f"| {name} | " + " | ".join(cells) + " |"


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


def render(
    matrix: Mapping[str, FamilyResult], conversations: Mapping[str, Sequence[Retention]]
) -> str:
    """Return the whole page."""
    parts = [
        _INTRODUCTION,
        "| family | " + " | ".join(POSITIONS) + " | controls |",
        "|---|" + "---|" * (len(POSITIONS) + 1),
        *(family_row(result) for result in matrix.values()),
        "",
        *broken_rows(),
        _CONVERSATIONS,
        "| family | " + " | ".join(f"{length:,}" for length in LENGTHS) + " |",
        "|---|" + "---|" * len(LENGTHS),
        *(retention_row(name, found) for name, found in conversations.items()),
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

PROSE = (_INTRODUCTION, _CONVERSATIONS, _STORAGE, _EXACTNESS)
