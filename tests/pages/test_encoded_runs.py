"""Pages encoded in runs: the bytes that each gives by itself, in memory of its own."""

import mlx.core as mx
import pytest

from omlx_cache.adapters.base import TokenRange
from omlx_cache.codecs.identity import CodecName
from omlx_cache.codecs.policy import CodecPolicy
from omlx_cache.pages import cut as cutting
from omlx_cache.pages import encoding
from omlx_cache.pages.cut import Cutter, PageCut, Source
from omlx_cache.pages.encoding import codecs_for, encode_page, encode_run
from omlx_cache.pages.layout import DENSE, tags_of
from omlx_cache_storage.keys import KeyChain, as_tokens, namespace_digest
from omlx_cache_storage.page import Page, PageMeta

LAYERS, HEADS, DIM, BLOCK, BLOCKS = 3, 2, 64, 32, 5
CODECS: list[CodecName] = ["affine8", "affine4", "k8v4", "turbo4", "turbo3", "turbo2"]


class Run:
    """Pages of three layers, one of other widths, cut from buffers that have slack."""

    def __init__(self, codec: CodecName, spoiled: tuple[int, ...] = ()) -> None:
        arrays: dict[str, mx.array] = {}
        for layer in range(LAYERS):
            for side, dim in (("keys", DIM), ("values", DIM if layer else 2 * DIM)):
                drawn = mx.random.normal((1, HEADS, BLOCKS * BLOCK + 7, dim), mx.bfloat16)
                for block in spoiled:
                    drawn[0, 0, block * BLOCK + 3, 5] = float("nan")
                arrays[f"{layer}.{side}"] = drawn
        held = (TokenRange(0, BLOCKS * BLOCK + 7),)
        self.cutter = Cutter([Source(arrays, dict.fromkeys(arrays, held))])
        namespace = namespace_digest({"model": "run"})
        chain = KeyChain(namespace, as_tokens(range(BLOCKS * BLOCK + 1)), BLOCK)
        self.pages: list[tuple[PageMeta, PageCut]] = []
        for end in range(BLOCK, BLOCKS * BLOCK + 1, BLOCK):
            cut = self.cutter.tokens(TokenRange(end - BLOCK, end))
            assert cut is not None
            meta = PageMeta(
                namespace, chain.key(end), chain.parent(end), "paged",
                end, BLOCK, False, DENSE, cut.tensors,
            )  # fmt: skip
            self.pages.append((meta, cut))
        self.codecs = codecs_for(self.pages[0][0], CodecPolicy(codec))

    def dense(self) -> list[Page]:
        return [Page(meta, self.cutter.payloads([cut])[0]) for meta, cut in self.pages]


@pytest.fixture(params=["host", "device"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The batches of a CPU, and those of a GPU."""
    if request.param == "device":
        for module in (cutting, encoding):
            monkeypatch.setattr(module, "on_host", lambda: False)
    return request.param


def bits_of(page: Page) -> bytes:
    return bytes(memoryview(page.payload))


@pytest.mark.parametrize("codec", CODECS)
def test_a_run_has_the_bytes_of_its_pages_encoded_one_by_one(codec: CodecName) -> None:
    run = Run(codec)
    alone = [encode_page(page, run.codecs) for page in run.dense()]
    together = encode_run(run.cutter, run.pages, run.codecs)
    assert [page.meta for page in together] == [page.meta for page in alone]
    assert [bits_of(page) for page in together] == [bits_of(page) for page in alone]
    assert all(tags_of(page.meta).keys() == run.codecs.keys() for page in together)


def test_a_page_out_of_range_stays_dense_amid_its_run() -> None:
    run = Run("affine8", spoiled=(1, 3))
    pages = encode_run(run.cutter, run.pages, run.codecs)
    assert [page.meta.codec == DENSE for page in pages] == [False, True, False, True, False]
    for page, dense in zip(pages, run.dense(), strict=True):
        assert page.meta.id == dense.meta.id
        assert bits_of(page) == bits_of(encode_page(dense, run.codecs))


def test_pages_of_a_run_share_no_memory() -> None:
    run = Run("affine4")
    mx.eval([array for source in run.cutter.sources for array in source.arrays.values()])
    before = mx.get_active_memory()
    pages = encode_run(run.cutter, run.pages, run.codecs)
    nbytes = pages[0].meta.nbytes
    assert all(page.payload.nbytes == nbytes for page in pages)
    del pages[1:]
    assert mx.get_active_memory() - before <= nbytes * 1.2
