"""The tree of cached prefixes, made of the columns of pages."""

import hashlib
import time

from omlx_cache.status.tree import PrefixTree
from omlx_cache_storage.eviction.order import Record
from omlx_cache_storage.format.names import PageName, StoredPage, parent_hint
from omlx_cache_storage.keys import BlockKey
from omlx_cache_storage.page import PageId

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


def test_a_run_ends_where_prefixes_part_and_knows_what_is_behind_it() -> None:
    forest = Forest()
    stem = forest.chain("stem", "", 4, used_ns=NOW - 100)
    inner = forest.chain("inner", stem, 2, used_ns=NOW - 90)
    for number in range(30):
        forest.chain(f"leaf{number}-", inner, 2, used_ns=NOW - 80 + number)
    other = forest.chain("other", stem, 1, used_ns=NOW - 95)
    memory = Forest()
    memory.chain("stem", "", 1, used_ns=0)
    tree = PrefixTree({"hot": memory.records, "cold": forest.records})
    (run,), more = tree.roots(NS, 10)
    assert (run["key"], run["start"], run["end"], run["blocks"]) == (forest.key(stem), 0, 1024, 4)
    assert (run["children"], run["leaves"], run["used_ns"]) == (2, 31, NOW - 51)
    assert (run["pages"].tolist(), run["nbytes"].tolist()) == ([1, 4], [1000, 4000])
    assert (run["rootless"], more) == (False, 0)
    first, second = tree.after(run["key"], 10)[0]
    assert (first["key"], first["leaves"], first["used_ns"]) == (forest.key(inner), 30, NOW - 51)
    assert (second["key"], second["leaves"]) == (forest.key(other), 1)
    latest, more = tree.after(first["key"], 10)
    assert [one["key"] for one in latest] == [forest.key(f"leaf{n}-1") for n in range(29, 19, -1)]
    assert {(one["start"], one["end"], one["children"]) for one in latest} == {(1536, 2048, 0)}
    ((namespace, whole),) = tree.namespaces()
    assert (more, namespace, whole["blocks"].sum(), len(whole)) == (20, NS, 67, 33)


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


def test_names_that_lie_make_no_circle_and_a_lost_root_is_seen() -> None:
    forest = Forest()
    forest.ends[forest.key("b")] = 0
    forest.add("a", "b", at=256)
    forest.add("b", "a", at=256)
    forest.add("c", "c", at=256)
    forest.add("orphan", "nobody knows", at=10 * BLOCK)
    tree = PrefixTree({"cold": forest.records})
    roots, _ = tree.roots(NS, 10)
    assert len(roots) == 4
    # What leads to the orphan has left.
    assert (roots[0]["rootless"], roots[0]["start"], roots[0]["end"]) == (True, 2304, 2560)


def test_an_unknown_namespace_and_an_unknown_block_have_nothing() -> None:
    tree = PrefixTree({"hot": Forest().records})
    assert tree.namespaces() == []
    for runs, more in (tree.roots(NS, 5), tree.after(NS, 5)):
        assert (len(runs), more) == (0, 0)
    assert not PrefixTree({}).has(NS)
