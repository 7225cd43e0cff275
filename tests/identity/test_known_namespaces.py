"""A process remembers the namespaces that it has use for, and no more: not every salt for ever."""

import gc

from omlx_cache.identity.namespace import RECENT, KnownNamespaces, Namespace
from omlx_cache_storage.keys import BlockKey


def _namespace(number: int) -> Namespace:
    return Namespace(BlockKey(number.to_bytes(32, "big")), {"salt": f"salt {number}"})


def _crowd(known: KnownNamespaces, first: int = 1000, count: int = 4 * RECENT) -> None:
    for number in range(first, first + count):
        known.add(_namespace(number))


def test_many_salts_are_not_kept() -> None:
    known = KnownNamespaces(set)
    _crowd(known, count=20 * RECENT)
    gc.collect()
    assert len(known.latest()) <= 2 * RECENT
    assert sum(isinstance(found, Namespace) for found in gc.get_objects()) <= 2 * RECENT + 64


def test_what_somebody_holds_is_known_however_many_follow() -> None:
    known = KnownNamespaces(set)
    held = known.add(_namespace(1))
    _crowd(known)
    assert known.document(held.digest) == {"salt": "salt 1"}
    assert known.add(_namespace(1)) is held, "another object would be forgotten beside it"


def test_a_page_that_memory_got_before_its_session_ended_keeps_its_document() -> None:
    pages: set[BlockKey] = set()
    known = KnownNamespaces(lambda: pages)
    held = known.add(_namespace(1))
    digest = held.digest
    _crowd(known)
    pages.add(digest)
    del held
    _crowd(known, first=10**6)
    assert known.document(digest) == {"salt": "salt 1"}
    pages.clear()
    _crowd(known, first=2 * 10**6)
    assert known.document(digest) == {}


def test_a_hundred_namespaces_in_memory_stay_known_while_others_pass() -> None:
    pages = {_namespace(number).digest for number in range(1, 101)}
    known = KnownNamespaces(lambda: pages)
    for number in range(1, 101):
        known.add(_namespace(number))
    _crowd(known)
    assert all(known.document(digest) for digest in pages)
    assert pages <= {one.digest for one in known.latest()}
