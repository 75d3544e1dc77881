"""The dashboard in a real browser, beside a simulated host that lives: Debian's chromium, driven by playwright."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from perphd.commands.dashboard.serving import Serving
from perphd.control.client import Client
from tools.screenshots.host import LivingHost, Past, comes_and_goes

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (make dev)")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs axe-playwright-python (make dev)"
)
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (apt install chromium)")

PAST_S = 240.0
LATER_S = 20.0
"""So long after the start of the real time the second batch job comes."""
SLOW_MS = 60_000
"""For whatever a browser on a full machine does."""
TICKS_PER_S = 5
"""At most, with one to spare."""
SIZE: Any = {"width": 1280, "height": 900}


@dataclass
class Running:
    """A living host and its dashboard."""

    socket: str
    serving: Serving

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.serving.port}"

    def link(self) -> str:
        """A link that is good once: every test brings a browser of its own."""
        return (self.folder / "url").read_text().strip()

    @property
    def folder(self) -> Path:
        return Path(self.socket).parent


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("living")
    events = comes_and_goes([(60.0, "report", True), (150.0, "report", False), (190.0, "report", True),
                             (PAST_S + LATER_S, "encode", True)])  # fmt: skip
    found: Future[Running] = Future()
    ended = threading.Event()

    async def live() -> None:
        host = LivingHost(folder, Past(PAST_S, events=events, resctrl=True))
        await host.remember()
        async with host.living() as agent:
            socket = agent.config.daemon.socket
            serving = Serving(Client(socket), url_file=str(folder / "url"))
            await serving.start(0)
            found.set_result(Running(socket, serving))
            while not ended.is_set():  # noqa: ASYNC110 (set by another thread)
                await asyncio.sleep(0.1)
            await serving.stop()

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as exc:
            if not found.done():
                found.set_exception(exc)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found.result()
    finally:
        ended.set()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def window(running: Running, browser: Any) -> Iterator[opened]:
    with opened(running, browser) as found:
        yield found


@pytest.fixture
def page(window: opened) -> Iterator[Any]:
    """A page with a session that shows the overview, live. It may neither complain nor ask another server."""
    page = window.page
    if urlsplit(page.url).path != "/":
        page.goto(window.address)
    wait_for(page, "#link", "live")
    page.wait_for_selector(".card .u-over")
    yield page
    page.set_viewport_size(SIZE)
    page.keyboard.press("Escape")
    if urlsplit(page.url).path == "/" and page.locator("#live").is_enabled():
        page.locator("#live").click()
    assert window.complaints == []


class opened:  # noqa: N801 (a context manager)
    """A browser with a session of its own. ``complaints``: errors on its console, and requests to other servers."""

    def __init__(self, running: Running, browser: Any) -> None:
        self.address, self._link = running.address, running.link()
        self._context = browser.new_context(viewport=SIZE)
        self._context.set_default_timeout(SLOW_MS)
        self.complaints: list[str] = []
        self.page = self._context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)

    def __enter__(self) -> opened:
        self.page.goto(self._link)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.address).netloc:
            self.complaints.append(f"asked {request.url}")


def wait_for(page: Any, selector: str, text: str) -> None:
    playwright.expect(page.locator(selector)).to_have_text(re.compile(text), timeout=SLOW_MS)


WATCH = """() => {
  window.seen = [];
  new MutationObserver(() => {
    setTimeout(() => {
      const rows = [...document.querySelectorAll("#batch tbody tr")];
      const row = rows.find((each) => each.cells[0].innerText === "encode");
      window.seen.push([Number(document.body.dataset.tick), row.cells[1].textContent, Date.now() / 1000]);
    });
  }).observe(document.body, { attributes: true, attributeFilter: ["data-tick"] });
}"""


def test_a_change_of_the_host_is_shown_with_the_next_picture(page: Any, running: Running, capsys: Any):
    page.evaluate(WATCH)
    client = Client(running.socket)
    began = None
    while began is None:
        status = client.get("status")
        (encode,) = (item for item in status["workloads"] if item["spec"]["name"] == "encode")
        if encode["condition"] == "running":
            began = (status["tick"], time.time())
        time.sleep(0.05)
    page.wait_for_function("() => window.seen.some(([, state]) => state === 'running')")
    seen = page.evaluate("window.seen")
    tick, shown_s = next((tick, at_s) for tick, state, at_s in seen if state == "running")
    with capsys.disabled():
        print(f"\nthe change was shown {shown_s - began[1]:.2f} s after the daemon told it")
    assert tick <= began[0] + 2 * TICKS_PER_S
    assert all(state == "running" for number, state, _ in seen if number > began[0] + 1)


def test_the_picture_is_that_of_perphctl_status(page: Any):
    heads = page.locator("#lras th[scope=col]").all_inner_texts()
    assert heads[:8] == ["LRA", "HEALTH", "RATE", "TARGET", "DELAY", "MAX", "USES", "HAS"]
    assert page.locator("#lras th[scope=row]").all_inner_texts() == ["mysql", "search"]
    assert page.locator("#maps h3").all_inner_texts() == ["Cores", "Cache ways of L3 0"]
    assert page.locator("#maps .core .unit").count() == 8 + 16
    assert re.search(r"CPUs, of 8: applications \d", page.locator(".stack svg").get_attribute("aria-label"))


def test_explain_opens_in_front_and_gives_the_focus_back(page: Any):
    button = page.get_by_role("button", name="Explain mysql")
    button.focus()
    page.keyboard.press("Enter")
    panel = page.get_by_role("dialog", name="Why mysql has its settings")
    playwright.expect(panel).to_contain_text("It was ", timeout=SLOW_MS)
    assert page.evaluate("document.getElementById('panel').contains(document.activeElement)")
    page.keyboard.press("Escape")
    playwright.expect(panel).to_be_hidden()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Explain mysql"


def test_a_decision_of_the_time_line_is_explained(page: Any):
    decisions = page.locator(".decisions").first
    decisions.locator("summary").click()
    decisions.locator("button").last.click()
    panel = page.get_by_role("dialog")
    playwright.expect(panel).to_contain_text("CONSIDERED", timeout=SLOW_MS)
    playwright.expect(panel).to_contain_text("batch on ")


def test_the_slider_shows_the_stored_past_and_live_the_present(page: Any):
    slider = page.get_by_role("slider", name="Moment to show")
    now = page.locator("#moment-text").inner_text()
    assert now == "now"
    page.get_by_role("button", name="Earlier decision").click()
    wait_for(page, "#link", "the past")
    wait_for(page, "#headline", "as it was")
    first = page.locator("#moment-text").inner_text()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", first)
    slider.focus()
    page.keyboard.press("Home")
    # Before the host was born nothing is stored.
    playwright.expect(page.locator("#lras tbody tr").first).to_contain_text("not running", timeout=SLOW_MS)
    assert page.locator("#moment-text").inner_text() < first
    assert slider.get_attribute("aria-valuetext") == page.locator("#moment-text").inner_text()
    page.get_by_role("button", name="Later decision").click()
    playwright.expect(page.locator("#lras tbody tr").first).not_to_contain_text(
        "not running", timeout=SLOW_MS
    )
    page.get_by_role("button", name="Live").click()
    wait_for(page, "#link", "live")
    assert page.locator("#moment-text").inner_text() == "now"


def test_plots_say_in_words_what_they_show(page: Any):
    page.get_by_role("button", name="6 hours").click()
    playwright.expect(page.get_by_role("button", name="6 hours")).to_have_attribute("aria-pressed", "true")
    words = page.locator(".card .plot").first.get_attribute("aria-label")
    assert re.search(
        r"mysql: p95 latency from .* to .*: p95 latency between .* ms and .* ms, last .* ms; at most", words
    )
    assert "decisions" in words
    page.locator(".card figure summary").first.click()
    rows = page.locator(".card figure table").first.locator("tbody tr")
    playwright.expect(rows.nth(23)).to_be_attached()  # the plot is drawn anew when the hours have come
    playwright.expect(page.locator(".card figure table").first).to_contain_text("not measured")


def test_what_if_and_models_answer(page: Any):
    page.get_by_label("CPUs that it would use").fill("2")
    page.get_by_role("button", name="Predict").click()
    wait_for(page, "#whatif-answer", "would be admitted|would have to wait")
    page.get_by_role("button", name="Show its model").click()
    page.wait_for_selector("#model .u-over")
    assert "work by batch's cores" in page.locator("#model .plot").first.get_attribute("aria-label")


def test_a_link_opens_one_browser_alone(running: Running, browser: Any):
    used = running.link()
    with opened(running, browser) as first:
        playwright.expect(first.page.locator("#admin")).to_be_hidden()
    context = browser.new_context()
    other = context.new_page()
    for address, words in (
        (used, "This link has been used"),
        (f"{running.address}/?token=guess", "This link is not valid"),
        (running.address, "Open the dashboard with the link"),
    ):
        other.goto(address)
        playwright.expect(other.locator("main")).to_contain_text(words)
    context.close()


CHANGE = """async () => {
  const session = await (await fetch("/api/session")).json();
  const headers = { "Content-Type": "application/json", [session.csrf_header]: session.csrf };
  const answer = await fetch("/api/pause", { method: "POST", headers, body: "{}" });
  return [answer.status, (await answer.json()).error];
}"""


def test_a_read_only_page_changes_nothing(page: Any, running: Running, window: opened):
    playwright.expect(page.locator("#admin")).to_be_hidden()
    status, words = page.evaluate(CHANGE)
    assert status == 403
    assert "read-only" in words
    assert Client(running.socket).get("status")["pauses"] == []
    # The browser itself says that a request failed.
    assert [text for text in window.complaints if "403" not in text] == []
    window.complaints.clear()


def test_the_sizing_page_shows_every_workload(page: Any):
    page.get_by_role("link", name="Sizing").click()
    page.wait_for_selector("#resource-0")
    assert page.locator("#resources table").count() == 2
    assert {"mysql", "search", "report"} <= set(page.locator("#resources .bars strong").all_inner_texts())


def violations(page: Any) -> list[str]:
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{item['id']}: {node['target']} {node['failureSummary']}" for item in found for node in item["nodes"]
    ]


LOOKS = [("light", 1280), ("dark", 1280), ("light", 380), ("dark", 380)]
WIDE = "document.documentElement.scrollWidth <= window.innerWidth"


def complained(page: Any) -> list[str]:
    """What axe says in every look: light and dark, wide and narrow."""
    found = []
    for scheme, width in LOOKS:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        found += [f"{scheme}, {width} px: {text}" for text in violations(page)]
        if not page.evaluate(WIDE):
            found.append(f"{scheme}, {width} px: wider than the window")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(SIZE)
    return found


def test_axe_finds_nothing_on_the_overview(page: Any):
    page.get_by_role("button", name="Show its model").click()
    page.wait_for_selector("#model .u-over")
    page.get_by_role("button", name="Predict").click()
    page.wait_for_selector("#whatif-answer p")
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    page.wait_for_selector(".card figure table")
    page.get_by_role("button", name="Earlier decision").click()
    wait_for(page, "#link", "the past")
    assert complained(page) == []
    page.get_by_role("button", name="Explain mysql").click()
    playwright.expect(page.get_by_role("dialog")).to_contain_text("It was ", timeout=SLOW_MS)
    assert complained(page) == []


def test_axe_finds_nothing_on_the_sizing_page(page: Any):
    page.get_by_role("link", name="Sizing").click()
    page.wait_for_selector("#resource-0")
    assert complained(page) == []


FOCUSABLE = """() => [...document.querySelectorAll(
  "a[href], button, input, select, summary, [tabindex='0']")].filter((each) =>
  !each.disabled && each.checkVisibility({ visibilityProperty: true })).length"""
FOCUSED = """() => {
  const at = document.activeElement;
  const style = getComputedStyle(at);
  at.dataset.visited = "1";
  const visited = document.querySelectorAll("[data-visited]").length;
  return { tag: at.tagName, text: at.textContent.trim().slice(0, 40), visited,
    outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 };
}"""


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Any):
    page.reload()
    page.wait_for_selector(".card .u-over")
    order: list[dict[str, Any]] = []
    wanted = page.evaluate(FOCUSABLE)
    while len(order) < wanted + 3 and (not order or order[-1]["visited"] < wanted):
        page.keyboard.press("Tab")
        order.append(page.evaluate(FOCUSED))
    assert order[0]["text"] == "Skip to the content"
    assert {item["tag"] for item in order} >= {"A", "BUTTON", "INPUT", "SELECT", "SUMMARY", "OL"}
    assert order[-1]["visited"] == wanted, [item["text"] for item in order]
    assert [item for item in order if not item["outline"]] == []
