"""The fleet page in a real browser, beside a served extender."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from perphd.commands.dashboard.serving import Serving
from perphd.control.client import Client
from tests.sim.test_dashboard_browser import (
    Running,
    browser,
    complained,
    opened,
    playwright,
    pytestmark,
    wait_for,
)
from tests.unit.control_fake import serving
from tests.unit.test_cluster_command import extender

FIXTURES = (browser, extender, pytestmark)


@pytest.fixture
def beside(extender: str, tmp_path: Path) -> Iterator[Running]:
    """A dashboard that knows this extender."""
    with serving(tmp_path) as daemon:
        socket = daemon.config.daemon.socket
        found: Future[Running] = Future()
        loop, ended = asyncio.new_event_loop(), asyncio.Event()

        async def live() -> None:
            dashboard = Serving(Client(socket), url_file=str(Path(socket).parent / "url"), extender=extender)
            await dashboard.start(0)
            found.set_result(Running(socket, dashboard))
            await ended.wait()
            await dashboard.stop()

        def run() -> None:
            try:
                loop.run_until_complete(live())
            except BaseException as exc:
                if not found.done():
                    found.set_exception(exc)
                raise

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield found.result()
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()


def test_the_fleet_page_shows_nodes_and_explains_a_pod(beside: Running, browser: object) -> None:
    with opened(beside, browser) as window:
        page = window.page
        page.get_by_role("link", name="Fleet").click()
        wait_for(page, "#state", "http://127.0.0.1")
        window.complaints.clear()  # the daemon of this test has no store, which the overview asks for
        nodes = page.locator("#fleet table").first
        assert nodes.locator("tbody tr").count() == 2
        assert nodes.locator("tbody tr").first.locator("th, td").first.inner_text() == "roomy"
        playwright.expect(page.locator("#fleet")).to_contain_text("document.generation is missing")
        page.get_by_label("Pod", exact=True).fill("batch/pi-7x9")
        page.get_by_role("button", name="Explain").click()
        wait_for(page, "#placement", "copper has too little room")
        assert complained(page) == []
        assert window.complaints == []
        page.get_by_label("Pod", exact=True).fill("batch/other")
        page.get_by_role("button", name="Explain").click()
        wait_for(page, "#placement", "no recent call about batch/other")
