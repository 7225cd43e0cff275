"""The kinds of events, by name; imports nothing, so that a command line may check them."""

from typing import Literal, get_args

Kind = Literal[
    "stored", "restored", "evicted", "removed", "cleared", "resynced", "failed", "unwritten"
]
"""`stored`: a tier has a page. `evicted`: it left for want of room, or since another tier has it.
`removed`: it was deleted, found to be gone, or to be damaged. `restored`: a request got tokens.
`cleared`: a tier has nothing any more, or nothing of a namespace. `resynced`: the directory was
read anew, and no page of it was told of one by one. `failed`: a page was not written, or could not
be read. `unwritten`: the writer did not try to write it."""
KINDS: tuple[Kind, ...] = get_args(Kind)
