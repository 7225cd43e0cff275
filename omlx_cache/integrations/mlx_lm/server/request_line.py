"""The line that the log has of a request when it has ended, whichever way."""

from typing import NamedTuple

from omlx_cache.requests.explanation import Explanation, RequestRecord, brief

CLIENT_LEFT = "client left"
CUT_OFF = "cut off"
FAILED = "failed"


class Ended(NamedTuple):
    """How a request ended: tokens `out`, seconds from its arrival to the first of them, None when
    there was none, and to its end. `early` says in words why it ended early, "" when it did not.
    """

    out: int
    first_seconds: float | None
    seconds: float
    early: str


def request_line(
    record: RequestRecord, explanation: Explanation | None, ended: Ended, notes: str
) -> str:
    """Return the line; `notes` are appended. What was not computed is not said to be."""
    restored, cold, remote = record.restored_tokens, record.cold_tokens, record.remote_tokens
    where = f"{restored - cold - remote} hot, {cold} cold" + f", {remote} remote" * bool(remote)
    rest = record.prompt_tokens - restored
    computed = f"{rest} recomputed"
    if ended.early and not ended.out:
        computed = f"{record.computed_tokens} of {rest} recomputed"
    why = "" if explanation is None else brief(explanation)
    first = "" if ended.first_seconds is None else f", first token {ended.first_seconds:.3f} s"
    return (
        f"request {record.number}: {record.prompt_tokens} tokens in, {restored} restored "
        f"({where}), {computed}{why}, {ended.out} out{first}, "
        f"total {ended.seconds:.3f} s{_early(ended)}{notes}"
    )


def waiting_line(tokens: int, ended: Ended) -> str:
    """Return the line of a request that ended before its turn: it has no number and no record."""
    return (
        f"request: {tokens} tokens in, ended before its turn, "
        f"total {ended.seconds:.3f} s{_early(ended)}"
    )


def _early(ended: Ended) -> str:
    return f", {ended.early}" if ended.early else ""
