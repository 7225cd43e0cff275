"""The tree of cached prefixes, made of the columns of pages."""

import hashlib
import time

from omlx_cache.status.tree import PrefixTree
from omlx_cache_storage.format.names import PageName, StoredPage, parent_hint
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId
from omlx_cache_storage.table import Record

NS = BlockKey(hashlib.sha256(b"ns").digest())
NOW = time.time_ns()
BLOCK = 256


class Forest:
    """Pages by name: `add("child", "parent")`."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.ends = {NS: 0}

    def key(self, name: str) -> BlockKey:
        return NS if name == "" else BlockKey(hashlib.sha256(name.encode()).digest())

    def add(
        self, name: str, parent: str = "", *, used_ns: int = NOW, tokens: int = BLOCK, at: int = -1
    ) -> None:
        key, above = self.key(name), self.key(parent)
        end = at if at >= 0 else self.ends[above] + tokens
        self.ends[key] = end
        file = PageName(PageId(key, "paged"), parent_hint(above), end, tokens, False)
        self.records.append(Record(StoredPage(NS, file, 1000)))
        self.records[-1].stamp_ns = used_ns

    def chain(self, name: str, parent: str, blocks: int, *, used_ns: int = NOW) -> str:
        for number in range(blocks):
            self.add(f"{name}{number}", parent, used_ns=used_ns)
            parent = f"{name}{number}"
        return parent


def test_blocks_that_do_not_branch_are_one_run() -> None:
    forest = Forest()
    last = forest.chain("a", "", 1000)
    tree = PrefixTree({"cold": forest.records})
    (run,), more = tree.roots(NS, 10)
    assert (run["key"], run["start"], run["end"], run["blocks"]) == (
        forest.key(last),
        0,
        256_000,
        1000,
    )
    assert (run["children"], run["leaves"], run["rootless"], more) == (0, 1, False, 0)
    assert run["pages"].tolist() == [0, 1000]
    assert run["nbytes"].tolist() == [0, 1_000_000]


def test_a_run_ends_where_prefixes_part_and_the_one_used_last_comes_first() -> None:
    forest = Forest()
    stem = forest.chain("stem", "", 4, used_ns=NOW - 1)
    for number in range(30):
        forest.chain(f"b{number}-", stem, 2, used_ns=NOW - 1000 + number)
    tree = PrefixTree({"cold": forest.records})
    (run,), _ = tree.roots(NS, 10)
    assert (run["key"], run["end"], run["children"], run["leaves"]) == (
        forest.key(stem),
        1024,
        30,
        30,
    )
    first, more = tree.after(run["key"], 10)
    assert more == 20
    assert [one["key"] for one in first] == [forest.key(f"b{n}-1") for n in range(29, 19, -1)]
    assert {(one["start"], one["end"], one["children"]) for one in first} == {(1024, 1536, 0)}
    ((namespace, whole),) = tree.namespaces()
    assert (namespace, whole["blocks"].sum(), len(whole), len(tree)) == (NS, 64, 31, 31)


def test_what_follows_counts_and_dates_what_leads_to_it() -> None:
    forest = Forest()
    stem = forest.chain("stem", "", 1, used_ns=NOW - 100)
    inner = forest.chain("inner", stem, 1, used_ns=NOW - 90)
    forest.chain("other", stem, 1, used_ns=NOW - 50)
    for number in range(3):
        forest.chain(f"leaf{number}-", inner, 1, used_ns=NOW - 40 + number)
    tree = PrefixTree({"cold": forest.records})
    (run,), _ = tree.roots(NS, 10)
    assert (run["leaves"], run["used_ns"]) == (4, NOW - 38)
    first, second = tree.after(run["key"], 10)[0]
    assert (first["key"], first["leaves"], first["used_ns"]) == (forest.key(inner), 3, NOW - 38)
    assert second["leaves"] == 1


def test_the_superseded_end_of_a_turn_is_no_branch() -> None:
    forest = Forest()
    middle = forest.chain("turn", "", 3)
    forest.add("tail", middle, tokens=100, used_ns=900_000_000)
    last = forest.chain("next", middle, 3)
    tree = PrefixTree({"hot": forest.records})
    (run,), _ = tree.roots(NS, 10)
    assert (run["key"], run["end"], run["children"]) == (forest.key(last), 6 * BLOCK, 0)
    assert run["pages"].tolist() == [7, 0]


def test_a_prompt_and_its_answer_that_end_in_one_block_are_one_prefix() -> None:
    forest = Forest()
    middle = forest.chain("turn", "", 3)
    forest.add("prompt", middle, tokens=100)
    forest.add("answer", middle, tokens=130)
    (run,), _ = PrefixTree({"hot": forest.records}).roots(NS, 10)
    assert (run["key"], run["end"], run["leaves"]) == (forest.key("answer"), 3 * BLOCK + 130, 1)
    forest.add("another", middle, tokens=50, used_ns=NOW - 1)
    (run,), _ = PrefixTree({"hot": forest.records}).roots(NS, 10)
    assert (run["key"], run["children"], run["leaves"]) == (forest.key(middle), 2, 2)


def test_a_page_whose_root_left_is_shown_as_what_it_is() -> None:
    forest = Forest()
    forest.add("orphan", "nobody knows", at=10 * BLOCK)
    tree = PrefixTree({"cold": forest.records})
    (run,), _ = tree.roots(NS, 10)
    assert (run["rootless"], run["start"], run["end"]) == (True, 9 * BLOCK, 10 * BLOCK)


def test_pages_of_both_tiers_and_of_several_groups_are_one_block() -> None:
    forest = Forest()
    forest.chain("a", "", 2)
    forest.chain("a", "", 2)
    memory = Forest()
    memory.chain("a", "", 1)
    tree = PrefixTree({"hot": memory.records, "cold": forest.records})
    (run,), _ = tree.roots(NS, 10)
    assert run["blocks"] == 2
    assert (run["pages"].tolist(), run["nbytes"].tolist()) == ([1, 4], [1000, 4000])


def test_names_that_lie_make_no_circle() -> None:
    forest = Forest()
    forest.ends[forest.key("b")] = 0
    forest.add("a", "b", at=256)
    forest.add("b", "a", at=256)
    forest.add("c", "c", at=256)
    tree = PrefixTree({"cold": forest.records})
    assert len(tree.roots(NS, 10)[0]) == 3


def test_an_unknown_namespace_and_an_unknown_block_have_nothing() -> None:
    tree = PrefixTree({"hot": Forest().records})
    assert tree.namespaces() == []
    for runs, more in (tree.roots(NS, 5), tree.after(NS, 5)):
        assert (len(runs), more) == (0, 0)
    assert not PrefixTree({}).has(NS)


def test_100_000_prefixes_are_looked_through_without_an_object_for_each() -> None:
    forest = Forest()
    stem = forest.chain("stem", "", 4)
    for number in range(100_000):
        forest.add(str(number), stem, used_ns=NOW - number)
    began = time.process_time()
    tree = PrefixTree({"cold": forest.records})
    runs, more = tree.after(forest.key(stem), 50)
    took = time.process_time() - began
    assert [run["key"] for run in runs] == [forest.key(str(n)) for n in range(50)]
    assert more == 99_950
    assert took < 2.0, f"{took:.2f} s; 0.06 s on two cores of a virtual machine"
