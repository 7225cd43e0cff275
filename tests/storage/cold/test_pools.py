"""Which pages share a ceiling."""

import dataclasses

from omlx_cache.identity.salt import salt_digest
from omlx_cache_storage.cold.budget import EACH, Budget, Share
from omlx_cache_storage.cold.pools import Pool, needs_documents, pools_of
from omlx_cache_storage.keys import BlockKey

ONE, OTHER = BlockKey(b"\x01" * 32), BlockKey(b"\x02" * 32)
ALICE, BOB = salt_digest("alice"), salt_digest("bob")


def _document(salt: str, label: str = "llama") -> dict[str, object]:
    return {"model": "ab" * 32, "salt": salt, "label": label}


def test_a_directory_without_shares_has_no_pools() -> None:
    assert pools_of(Budget(100, "quota"), ONE, _document(ALICE)) == {}
    assert not needs_documents(Budget(100, "quota"))


def test_each_salt_has_a_pool_of_its_own_over_all_its_namespaces() -> None:
    budget = Budget(100, "quota", (Share("salt", EACH, fraction=0.25),))
    assert pools_of(budget, ONE, _document(ALICE)) == {Pool("salt", ALICE): 25}
    assert pools_of(budget, OTHER, _document(ALICE, "qwen")) == {Pool("salt", ALICE): 25}
    assert pools_of(budget, ONE, _document(BOB)) == {Pool("salt", BOB): 25}
    assert needs_documents(budget)


def test_a_named_share_goes_before_that_of_each() -> None:
    each, named = Share("salt", EACH, fraction=0.25), Share("salt", ALICE, nbytes=60)
    for shares in ((each, named), (named, each)):
        budget = Budget(100, "quota", shares)
        assert pools_of(budget, ONE, _document(ALICE)) == {Pool("salt", ALICE): 60}
        assert pools_of(budget, ONE, _document(BOB)) == {Pool("salt", BOB): 25}


def test_pages_without_a_salt_are_no_tenants_and_can_have_a_share_of_their_own() -> None:
    each = Budget(100, "quota", (Share("salt", EACH, nbytes=25),))
    assert pools_of(each, ONE, _document(salt_digest(None))) == {}
    own = dataclasses.replace(each, shares=(*each.shares, Share("salt", "", nbytes=9)))
    assert pools_of(own, ONE, _document(salt_digest(None))) == {Pool("salt", ""): 9}
    # An empty text is a salt like any other.
    assert pools_of(own, ONE, _document(salt_digest(""))) == {Pool("salt", salt_digest("")): 25}


def test_a_page_is_in_a_pool_of_every_kind_and_a_share_is_no_more_than_the_budget() -> None:
    shares = (
        Share("namespace", ONE.hex(), nbytes=10),
        Share("salt", EACH, fraction=0.5),
        Share("model", "llama", nbytes=1000),
    )
    budget = Budget(100, "quota", shares)
    assert pools_of(budget, ONE, _document(ALICE)) == {
        Pool("namespace", ONE.hex()): 10,
        Pool("salt", ALICE): 50,
        Pool("model", "llama"): 100,
    }
    assert pools_of(budget, OTHER, _document("", "qwen")) == {}


def test_a_document_that_cannot_be_read_leaves_the_pool_of_the_namespace() -> None:
    shares = [Share(kind, name, nbytes=9) for kind in ("salt", "model") for name in (EACH, "")]
    budget = Budget(100, "quota", (Share("namespace", EACH, nbytes=9), *shares))
    for document in ({}, {"salt": {"omitted": "too large", "sha256": "0"}}):
        assert Pool("namespace", ONE.hex()) in pools_of(budget, ONE, document)
        assert Pool("salt", "") not in pools_of(budget, ONE, document)
    assert set(pools_of(budget, ONE, {})) == {Pool("namespace", ONE.hex())}
