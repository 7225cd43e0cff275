"""The demo's two prompts and the steps in which they are computed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx_cache.tools.demo.errors import DemoError
from omlx_cache.tools.demo.subject import SEED, Subject

DEFAULT_TOKENS = 4096
CHUNK = 512
TURNS = 4


@dataclass(frozen=True, slots=True)
class Prompts:
    """Two prompts of one length that agree in exactly the first `shared` tokens.

    `ends` are the positions at which every run ends a step, with the cache or without: multiples
    of the chunk size, `shared`, all but the last token, and the end.
    """

    first: list[int]
    second: list[int]
    shared: int
    ends: tuple[int, ...]

    @property
    def turns(self) -> list[int]:
        """Lengths at which the first prompt is a turn of a conversation, about equally far apart;
        steps end there, and the last is the whole prompt."""
        last = len(self.ends) - 1
        return sorted({self.ends[last * turn // TURNS] for turn in range(1, TURNS + 1)})


def read_tokens(subject: Subject, prompt_file: Path | None, wanted: int | None) -> list[int]:
    """Return the prompt: a text file's tokens, cut to `wanted`, or drawn ones.

    Raises DemoError for a file that cannot be read or is shorter than `wanted`.
    """
    if prompt_file is None:
        draw = random.Random(SEED)
        return [draw.randrange(subject.vocabulary) for _ in range(wanted or DEFAULT_TOKENS)]
    try:
        text = prompt_file.read_text(encoding="utf-8")
    except OSError as error:
        raise DemoError(f"the prompt file {prompt_file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DemoError(f"the prompt file {prompt_file} is not UTF-8 text: {error}") from error
    if not text.strip():
        raise DemoError(f"the prompt file {prompt_file} is empty")
    tokens = subject.encode(text)
    if wanted is not None and len(tokens) < wanted:
        raise DemoError(
            f"the prompt file {prompt_file} has {len(tokens)} tokens, --tokens asks for {wanted}"
        )
    return tokens[:wanted]


def make_prompts(tokens: Sequence[int], block_size: int) -> Prompts:
    """Return the prompts for a text: the second has the other half backwards.

    Raises DemoError when the text has fewer than two blocks, since half of it must be one.
    """
    first = list(tokens)
    shared = len(first) // 2 // block_size * block_size
    if shared == 0:
        raise DemoError(
            f"the prompt has {len(first)} tokens; the demo needs {2 * block_size}, two blocks of "
            f"{block_size} (OMLX_CACHE_BLOCK_SIZE=16 takes shorter ones)"
        )
    rest = [*first[:shared:-1], first[shared]]
    if rest[0] == first[shared]:
        rest[0] = 0 if first[shared] else 1
    return Prompts(first, first[:shared] + rest, shared, step_ends(len(first), shared))


def step_ends(length: int, shared: int) -> tuple[int, ...]:
    """Return where the steps of a prefill end, as `mlx_lm.generate` takes them: the last token
    alone, the others in chunks; a chunk ends at `shared` too."""
    chunks = {*range(CHUNK, length, CHUNK), shared, length - 1, length}
    return tuple(sorted(end for end in chunks if 0 < end <= length))
