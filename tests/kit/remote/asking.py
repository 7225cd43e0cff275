"""What a machine asks a remote store about a story."""

from collections.abc import Mapping

from kit.storage import Story
from kit.storage.pages import BLOCK
from omlx_cache_storage.remote.lookups import Inquiry


def inquiry(
    story: Story, blocks: int, *, length: int = 0, others: Mapping[str, int] | None = None
) -> Inquiry:
    """Return the question for so many blocks of a story, of which this machine knows none."""
    chain = story.chain
    keys = [story.namespace, *(chain.key(n * BLOCK) for n in range(1, blocks + 1))]
    length = length or blocks * BLOCK
    return Inquiry(story.namespace, BLOCK, keys, "paged", 0, others or {}, length, chain.key)
