"""The status page in a real browser: what it shows, to whom, and that it stays polite."""

import gc
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright

from kit.examples import some
from kit.made_up import MadeUp, process, remote, request, stats
from kit.status import serve
from omlx_cache.control.server import ApiServer
from omlx_cache.settings.sizes import duration, format_size

WIDTHS = (390, 1440, 2560)
SCHEMES = ("light", "dark")
ACTIVE = (
    "button",
    "combobox",
    "textbox",
    "link",
    "meter",
    "image",
    "table",
    "region",
    "DisclosureTriangle",
)

LOW_CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92
    : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const under = (at) => {
    for (; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0.99) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const at = text.parentElement;
    if (!text.data.trim() || !at.checkVisibility() || at.closest("script, style, option")) continue;
    const style = getComputedStyle(at);
    const front = light(parse(at.closest("svg") ? style.fill : style.color));
    const back = light(under(at));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    if (ratio < 4.5) poor.push([text.data.trim().slice(0, 40), Math.round(ratio * 100) / 100]);
  }
  return poor;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
    # Its pipes are in circles of objects: another file's test counts descriptors.
    gc.collect()


@pytest.fixture
def source() -> MadeUp:
    return MadeUp(100_000)


class Visitor:
    """Opens the page of a source; what the browser complains of fails the test at its end.

    `addresses` are those that it asked for. `expected` are complaints that a test provokes.
    """

    def __init__(self, browser: Browser, stack: ExitStack) -> None:
        self._browser, self._stack = browser, stack
        self.complaints: list[str] = []
        self.addresses: list[str] = []
        self.expected: tuple[str, ...] = ()

    def serve(self, source: MadeUp, token: str | None = None, port: int = 0) -> ApiServer:
        return self._stack.enter_context(serve(source, port, token))

    def open(
        self,
        source: MadeUp,
        width: int = 820,
        scheme: Any = "light",
        *,
        history: list[dict[str, object]] | None = None,
    ) -> Page:
        server = self.serve(source)
        page = self.page(width, scheme)
        if history is not None:
            page.route("**/overview.json", lambda route: _with_history(route, history))
            # A poll may be on its way when the test ends.
            self._stack.callback(page.unroute_all, behavior="ignoreErrors")
        page.goto(server.url)
        expect(page.locator("#main")).to_be_visible()
        return page

    def page(self, width: int = 820, scheme: Any = "light") -> Page:
        context: BrowserContext = self._browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="reduce",
            locale="en-GB",
        )
        self._stack.callback(context.close)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda asked: self.addresses.append(asked.url))
        return page


def _with_history(route: Route, rows: list[dict[str, object]]) -> None:
    answer = route.fetch()
    route.fulfill(response=answer, body=json.dumps({**answer.json(), "history": rows}))


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    with ExitStack() as stack:
        visitor = Visitor(browser, stack)
        yield visitor
    left = [c for c in visitor.complaints if not any(e in c for e in visitor.expected)]
    assert not left


def _open_tree(page: Page) -> None:
    page.locator("#tree .open").first.click()
    page.locator("#tree ul .open").first.click()
    expect(page.locator("#tree ul ul .leaf").first).to_be_visible()


def _overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - innerWidth"))


def _wait(page: Page, condition: str) -> None:
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition


def _samples(per_sample: int = 1000, count: int = 200) -> list[dict[str, object]]:
    at = [time.time() - 10 * number for number in range(count, 0, -1)]
    return [
        {
            "pid": None,
            "title": "all processes",
            "at": at,
            "asked_tokens": [per_sample] * count,
            "restored_tokens": [per_sample * 3 // 4] * count,
            "saved_seconds": [-0.5 if number % 7 == 0 else 2.0 for number in range(count)],
            "hot_bytes": [1000] * count,
            "cold_bytes": [1000] * count,
        }
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("prefixes", [0, 10, 100_000])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_combination_fits_and_reads_well(
    visitor: Visitor, width: int, scheme: str, prefixes: int
) -> None:
    source = MadeUp(prefixes)
    source.known = [process(), process(2, title="other", stats=None, error="no answer within 1 s")]
    page = visitor.open(source, width, scheme, history=_samples())
    if prefixes:
        _open_tree(page)
        assert page.locator("#tree ul ul .leaf").count() == min(prefixes, 25)
        page.click("#texts")
        expect(page.locator("#tree .text").first).to_be_visible()
    page.click("#all-settings")
    assert _overflow(page) <= 0
    assert page.evaluate(LOW_CONTRAST) == []
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    parts = [node for node in nodes if node.get("role", {}).get("value") in ACTIVE]
    assert {node["role"]["value"] for node in parts} >= {"button", "combobox", "meter", "image"}
    assert all(node["name"]["value"].strip() for node in parts if not node.get("ignored"))


def test_without_anything_it_says_what_to_do(visitor: Visitor) -> None:
    source = MadeUp(0)
    source.found = []
    quiet = {"sessions": 0, "asked_tokens": 0, "restored_tokens": 0}
    source.known = [process(cold_dir=None, stats=stats(cold=None, writer=None, requests=quiet))]
    page = visitor.open(source, 390)
    expect(page.locator("#no-prefixes")).to_contain_text("Nothing is cached yet")
    expect(page.locator("#no-requests")).to_contain_text("Send a prompt")
    expect(page.locator("#tiers")).to_contain_text("Off: only memory is used")
    assert page.title() == "omlx-cache"
    assert _overflow(page) <= 0
    source.known = []
    expect(page.locator("#nobody")).to_contain_text("omlx-cache serve")


def test_labels_are_data_and_never_markup(visitor: Visitor) -> None:
    evil = "<img src=x onerror=alert(1)></td><script>alert(2)</script>"
    source = MadeUp(3, evil)
    source.found = [request(1, model=evil, why=evil, salt=evil)]
    source.known = [
        process(title=evil, name=evil, cold_dir=evil, version=evil, models=[evil]),
        process(2, title=evil, error=evil, stats=None),
    ]
    source.configured = {evil: {"rendered": evil, "kind": "argument", "origin": evil}}
    page = visitor.open(source, history=[{**_samples()[0], "title": evil}])
    _open_tree(page)
    page.click("#texts")
    expect(page.locator("#tree .text").first).to_contain_text("<img src=x")
    page.locator("#settings summary").first.click()
    expect(page.locator("#settings")).to_contain_text(evil)
    assert page.locator("#main img, #main script, td td").count() == 0


def test_text_is_asked_for_only_when_somebody_wants_it(visitor: Visitor) -> None:
    source = MadeUp(3)
    page = visitor.open(source)
    _open_tree(page)
    page.click("#reload")
    expect(page.locator("#tree ul ul .leaf").first).to_be_visible()
    assert not any(text for kind, *_, text in source.asked if kind == "prefixes")
    page.click("#texts")
    expect(page.locator("#tree .text").first).to_contain_text("You are a helpful assistant")
    expect(page.locator("#texts")).to_have_attribute("aria-pressed", "true")
    page.click("#texts")
    expect(page.locator("#tree .text")).to_have_count(0)


def test_a_token_goes_into_a_header_and_never_into_an_address(visitor: Visitor) -> None:
    server = visitor.serve(MadeUp(3), token="s3cret-token")
    visitor.expected = ("401",)
    page = visitor.page()
    page.goto(server.url)
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
    expect(page.locator("#main")).to_be_hidden()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#live")).to_contain_text("refused")
    page.get_by_label("Token", exact=True).fill("s3cret-token")
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_visible()
    other = visitor.page()
    other.goto(f"{server.url}#token=s3cret-token")
    expect(other.locator("#main")).to_be_visible()
    assert other.url == server.url
    asked = [address.partition("#")[0] for address in visitor.addresses]
    assert len(asked) > 5
    assert not any("s3cret" in address for address in asked)


@pytest.mark.nightly
def test_several_processes_are_summed_and_what_failed_is_said_with_its_remedy(
    visitor: Visitor,
) -> None:
    source, empty = MadeUp(3), {"pages": 0, "nbytes": 0, "limit_bytes": 0, "allowed_bytes": 0}
    failed = {"kind": "failed", "at": time.time(), "key": "cd" * 32, "detail": "No space left"}
    source.happened = [{**failed, "kind": "stored"}, failed]
    source.known = [
        process(),
        process(2, title="run, gemma"),
        process(4, title="omlx-cached", role="service", stats=stats(hot=empty, requests={})),
    ]
    source.found = [request(1), request(2, pid=2, why="the next block was evicted")]
    page = visitor.open(source)
    expect(page.locator("#figures")).to_contain_text("2,804,224")
    expect(page.locator("#all-well")).to_be_visible()
    assert "events" not in [kind for kind, *_ in source.asked]
    assert page.get_by_role("meter", name="Memory of").count() == 2
    # One directory is counted once, however many use it.
    assert page.get_by_role("meter", name="Disk").count() == 1
    full = stats()
    full["writer"]["failed_pages"], full["cold"]["room"] = 3, "short"
    gone = process(3, title="store", stats=None, error="it did not answer within 1 s")
    source.known = [process(stats=full), process(2, title="run, gemma"), gone]
    expect(page.locator("#processes")).to_contain_text("did not answer within 1 s")
    expect(page.locator("#problems")).to_contain_text("3 pages could not be written")
    expect(page.locator("#failures li")).to_have_count(1)
    expect(page.locator("#alert")).to_contain_text("3 things went wrong")
    page.select_option("#process", "2")
    expect(page.locator("#figures")).to_contain_text("1,402,112")
    expect(page.locator("#requests tbody tr")).to_have_count(1)
    expect(page.locator("#requests")).to_contain_text("the next block was evicted")


def test_a_request_has_its_number_and_its_first_token_rounded_as_everywhere(
    visitor: Visitor,
) -> None:
    source = MadeUp(0)
    source.found = [request(1, first_token_seconds=154.9, total_seconds=7300.0)]
    page = visitor.open(source)
    row = page.locator("#requests tbody tr")
    expect(row.locator(".number")).to_have_text("40")
    expect(row.locator(".first")).to_have_text("155 s")
    expect(row.locator(".took")).to_have_text("2.0 h")
    figures = (0.1234, 9.876, 599.4, 7199, 90_000, 200_000)
    shown = page.evaluate("list => list.map(duration)", list(figures))
    assert shown == [duration(seconds) for seconds in figures]
    sizes = (1, 1000, 1536, 5 * 2**30 + 2**28)
    assert page.evaluate("list => list.map(bytes)", list(sizes)) == list(map(format_size, sizes))


@pytest.mark.parametrize(("found", "shown"), [(12, False), (13, True)])
def test_more_requests_are_offered_where_there_are_more(
    visitor: Visitor, found: int, shown: bool
) -> None:
    source = MadeUp(0)
    source.found = [request(number) for number in range(found)]
    page = visitor.open(source)
    expect(page.locator("#requests tbody tr")).to_have_count(12)
    expect(page.locator("#more-requests")).to_be_visible(visible=shown)


def test_charts_are_as_long_as_there_are_samples_and_have_a_table(visitor: Visitor) -> None:
    page = visitor.open(MadeUp(0), history=_samples(1000, 30))
    figure = page.locator("#c-tokens")
    expect(figure).to_contain_text("22,500 of 30,000 from the cache in the last 6 min")
    figure.locator("summary").click()
    expect(figure.locator("tbody tr").first).to_be_visible()
    assert figure.locator("rect.hit").count() == figure.locator("tbody tr").count() == 30
    assert page.locator("#c-saved rect.loss").count() > 0


@pytest.mark.parametrize("width", some(WIDTHS, 390))
@pytest.mark.parametrize("scheme", some(SCHEMES, "dark"))
def test_a_store_that_machines_share_is_a_tier_and_says_what_helps_when_it_rests(
    visitor: Visitor, source: MadeUp, width: int, scheme: str
) -> None:
    source.known = [process(pid, stats=stats(remote=remote())) for pid in (1, 2)]
    source.known[0]["stats"]["requests"]["restored_remote_tokens"] = 600_000
    source.found = [request(1, remote_tokens=11_776), request(2, remote_tokens=5, cold_tokens=6)]
    page = visitor.open(source, width, scheme)
    expect(page.locator("#tiers")).to_contain_text("148 GiB read, 42 GiB written")
    expect(page.locator("#tiers")).to_contain_text("0.42 ms away")
    expect(page.locator("#figures")).to_contain_text("from other machines")
    expect(page.locator("#requests")).to_contain_text("part from disk and other machines")
    why = "remote_timeout: <b>nothing</b> came from " + "cache" * 30
    source.known = [process(stats=stats(remote=remote(state=f"resting: {why}", bad_pages=3)))]
    expect(page.locator("#tiers .state.bad")).to_have_text(f"Left alone for a while: {why}")
    expect(page.locator("#main")).to_contain_text("omlx-cache doctor --remote")
    assert _overflow(page) <= 0
    assert page.evaluate(LOW_CONTRAST) == []


@pytest.mark.nightly
def test_it_asks_ever_more_seldom_while_nobody_answers_and_not_at_all_when_hidden(
    visitor: Visitor,
) -> None:
    visitor.expected = ("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
    page = visitor.page()
    with serve(MadeUp(3)) as server:
        page.goto(server.url)
        expect(page.locator("#live")).to_contain_text("Live")
    expect(page.locator("#live")).to_contain_text("No answer since")
    _wait(page, "state.delay === 4000")
    visitor.serve(MadeUp(3), port=server.server_address[1])
    page.evaluate("state.delay = POLL; tick()")
    expect(page.locator("#live")).to_contain_text("Live")
    page.evaluate("""Object.defineProperty(document, "hidden", { value: true })""")
    _wait(page, "!state.busy")
    asked = page.evaluate("state.polls")
    page.evaluate("tick()")
    assert page.evaluate("state.polls") == asked
