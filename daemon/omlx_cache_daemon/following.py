"""Seeing each request of a store once when it ends, by asking for the records again and again."""

from typing import NamedTuple

from omlx_cache.requests.explanation import RequestRecord
from omlx_cache_daemon.replies import Map, as_answer, as_maps, count_of


class Followed(NamedTuple):
    """What has become known since the last look; `unseen` requests were forgotten before they
    ended or were asked for. With `more` there is something left to ask for at once."""

    begun: list[RequestRecord]
    ended: list[RequestRecord]
    unseen: int
    more: bool


class Follower:
    """Asks for the records that it has not seen end, and for no others.

    The first look only finds what is under way. Mutable: `_after`, up to which number all are
    known, None at first, and `_open`, those of them that had not ended.
    """

    def __init__(self) -> None:
        self._after: int | None = None
        self._open: set[int] = set()

    def question(self) -> dict[str, object]:
        """Return the arguments of the operation `requests`."""
        if self._after is None:
            return {}
        return {"after": self._after, "open": sorted(self._open)}

    def take(self, reply: Map) -> Followed:
        """Return the news of a reply."""
        upto = count_of(reply, "upto")
        records = [as_answer(RequestRecord, one) for one in as_maps(reply.get("records"))]
        after = self._after
        if after is not None and upto < after:
            # Another store has taken the place of the one before: its numbers begin again.
            self._after, self._open = 0, set()
            return Followed([], [], 0, more=True)
        self._after = upto
        open_before, self._open = self._open, {r.number for r in records if not _has_ended(r)}
        if after is None:
            return Followed([], [], 0, more=False)
        forgotten = open_before - {record.number for record in records}
        new = [record for record in records if record.number > after]
        skipped = upto - after - len(new)
        return Followed(
            [record for record in new if not _has_ended(record)],
            [record for record in records if _has_ended(record)],
            len(forgotten) + max(0, skipped),
            more=bool(new),
        )


def _has_ended(record: RequestRecord) -> bool:
    return record.total_seconds is not None
