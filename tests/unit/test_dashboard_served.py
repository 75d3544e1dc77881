"""The dashboard's server: who gets in, what is refused and in which words, and what it costs the daemon."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from perphd.commands.dashboard.access import CSRF_HEADER, SESSION_S, RequestRefused, Sessions, check_host
from perphd.commands.dashboard.server import MAX_STREAMS
from perphd.commands.dashboard.serving import Serving
from perphd.control.client import Client
from perphd.domain.event import Event, EventKind
from tests.unit.control_fake import Served, serving


@dataclass
class Opened:
    """A dashboard beside a daemon, and a browser without a session."""

    daemon: Served
    dashboard: Serving
    browser: aiohttp.ClientSession

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.dashboard.port}"

    @property
    def link(self) -> str:
        return f"{self.address}/?token={self.dashboard.sessions.token}"

    async def enter(self) -> None:
        async with self.browser.get(self.link) as response:
            assert response.status == 200
            assert str(response.url) == f"{self.address}/"


@asynccontextmanager
async def opened(folder: Path, admin: bool = False, url_file: str | None = None) -> AsyncIterator[Opened]:
    with serving(folder) as daemon:
        dashboard = Serving(Client(daemon.config.daemon.socket), admin, url_file)
        await dashboard.start(0)
        # aiohttp keeps cookies of numeric hosts only where that is asked for.
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as browser:
            try:
                yield Opened(daemon, dashboard, browser)
            finally:
                await dashboard.stop()


async def refused(found: Opened, path: str, **headers: str) -> tuple[int, str]:
    async with found.browser.get(f"{found.address}{path}", headers=headers) as response:
        return response.status, await response.text()


async def test_a_link_opens_the_dashboard_once(tmp_path: Path):
    async with opened(tmp_path) as found:
        link = found.link
        async with found.browser.get(link, allow_redirects=False) as response:
            assert response.status == 303
            assert "token" not in response.headers["Location"]
            cookie = response.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
        async with aiohttp.ClientSession() as another, another.get(link) as response:
            assert response.status == 403
            assert "This link has been used" in await response.text()
        status, text = await refused(found, "/")
        assert status == 200, text


async def test_without_a_session_nothing_is_shown(tmp_path: Path):
    async with opened(tmp_path) as found:
        status, text = await refused(found, "/")
        assert status == 401
        assert "perphctl dashboard printed" in text
        status, text = await refused(found, "/?token=wrong")
        assert status == 403
        assert "not valid" in text
        for path in (
            "/api/session",
            "/api/stream",
            *(f"/api/{path}" for path in found.dashboard.api.readers()),
        ):
            status, text = await refused(found, path)
            assert status == 401, path
            assert "perphctl dashboard printed" in json.loads(text)["error"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1:9477", ""]
)
async def test_other_names_of_this_host_are_refused(tmp_path: Path, host: str):
    async with opened(tmp_path) as found:
        await found.enter()
        status, text = await refused(found, "/", Host=host)
        assert status == 403
        assert "answers only to" in text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8888", "LOCALHOST", "[::1]:80"])
def test_names_of_loopback_are_taken_at_any_port(host: str):
    check_host(host)


async def test_another_site_reads_nothing(tmp_path: Path):
    async with opened(tmp_path) as found:
        await found.enter()
        assert (await refused(found, "/api/session"))[0] == 200
        for headers in (
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "null"},
        ):
            status, text = await refused(found, "/api/session", **headers)
            assert status == 403
            assert "came from another site" in text


async def test_every_answer_has_the_safe_headers(tmp_path: Path):
    async with opened(tmp_path) as found:
        await found.enter()
        for path in ("/", "/sizing", "/static/app.css", "/api/session", "/absent", "/?token=x"):
            async with found.browser.get(f"{found.address}{path}") as response:
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Referrer-Policy"] == "no-referrer"


async def test_only_the_pages_own_files_are_served(tmp_path: Path):
    async with opened(tmp_path) as found:
        for path in (
            "/static/../server.py",
            "/static/%2e%2e/server.py",
            "/static/vendor/uPlot.LICENSE",
            "/static/js",
        ):
            assert (await refused(found, path))[0] == 404, path


async def change(found: Opened, path: str, body: object, **headers: str) -> tuple[int, dict[str, object]]:
    async with found.browser.get(f"{found.address}/api/session") as response:
        session = await response.json()
    given = {"Origin": found.address, session["csrf_header"]: session["csrf"]} | headers
    async with found.browser.post(f"{found.address}/api/{path}", json=body, headers=given) as response:
        return response.status, await response.json()


async def test_a_read_only_dashboard_changes_nothing(tmp_path: Path):
    async with opened(tmp_path) as found:
        await found.enter()
        for path in found.dashboard.api.changers():
            status, answer = await change(found, path, {"mode": "enforce"})
            assert status == 403
            assert "read-only" in str(answer["error"])
        assert found.daemon.agent.calls == []


async def test_an_admin_changes_what_the_page_asks_for_and_nobody_else_does(tmp_path: Path):
    async with opened(tmp_path, admin=True) as found:
        await found.enter()
        evil = {"Origin": "http://evil.example"}
        assert (await change(found, "mode", {"mode": "enforce"}, **evil))[0] == 403
        status, answer = await change(found, "mode", {"mode": "enforce"}, **{CSRF_HEADER: "wrong"})
        assert status == 403
        assert "Load it again" in str(answer["error"])
        assert found.daemon.agent.calls == []
        status, answer = await change(found, "mode", {"mode": "enforce"})
        assert (status, answer["mode"]) == (200, "enforce")
        assert len(found.daemon.agent.calls) == 1
        status, answer = await change(found, "mode", {"mode": "sideways"})
        assert status == 400
        assert "sideways" in str(answer["error"])


async def read_event(response: aiohttp.ClientResponse, wanted: str) -> dict[str, object]:
    name = ""
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: ") and name == wanted:
            data: dict[str, object] = json.loads(line[6:])
            return data
    raise AssertionError(f"the stream ended without {wanted}")


async def test_the_daemon_is_followed_only_while_somebody_looks(tmp_path: Path):
    async with opened(tmp_path) as found:
        await found.enter()
        assert not found.daemon.agent.subscribers
        async with found.browser.get(f"{found.address}/api/stream") as response:
            picture = await read_event(response, "picture")
            assert [lra["name"] for lra in picture["lras"]] == ["db", "cache"]  # type: ignore[attr-defined]
            assert len(found.daemon.agent.subscribers) == 1
            async with found.browser.get(f"{found.address}/api/stream") as second:
                await read_event(second, "picture")
                assert len(found.daemon.agent.subscribers) == 1
        while found.daemon.agent.subscribers:  # noqa: ASYNC110 (the daemon lives in another thread)
            await asyncio.sleep(0.01)


async def test_streams_are_limited(tmp_path: Path):
    async with opened(tmp_path) as found:
        await found.enter()
        kept = [await found.browser.get(f"{found.address}/api/stream") for _ in range(MAX_STREAMS)]
        status, text = await refused(found, "/api/stream")
        assert status == 503
        assert "are open already" in text
        for response in kept:
            response.close()


async def test_a_link_file_always_holds_a_fresh_link(tmp_path: Path):
    file = tmp_path / "url"
    async with opened(tmp_path, url_file=str(file)) as found:
        first = file.read_text().strip()
        assert file.stat().st_mode & 0o007 == 0
        assert re.fullmatch(rf"{re.escape(found.address)}/\?token=[\w-]{{43}}", first)
        async with found.browser.get(first) as response:
            assert response.status == 200
        second = file.read_text().strip()
        assert second != first
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as another:
            async with another.get(first) as response:
                assert response.status == 403
            async with another.get(second) as response:
                assert response.status == 200
    assert not file.exists()


async def read(found: Opened, path: str) -> dict[str, Any]:
    async with found.browser.get(f"{found.address}/api/{path}") as response:
        assert response.status == 200, await response.text()
        data: dict[str, Any] = await response.json()
        return data


def words(parts: list[dict[str, Any]]) -> str:
    """Everything that the page shows of these parts."""
    lines = [line["text"] for part in parts if part["kind"] == "lines" for line in part["lines"]]
    rows = [cell["text"] for part in parts if part["kind"] == "table" for row in part["rows"] for cell in row]
    return "\n".join([*lines, *rows])


async def test_an_explanation_says_what_perphctl_explain_says(tmp_path: Path):
    async with opened(tmp_path) as found:
        await found.enter()
        told = await read(found, "explain?workload=db")
        assert "the cheapest that meets the target" in words(told["parts"])
        assert [part["caption"] for part in told["parts"] if part["kind"] == "table"] == ["Considered"]
        status, text = await refused(found, "/api/explain?workload=nobody")
        assert status == 404
        assert "nobody" in json.loads(text)["error"]


async def test_what_if_asks_the_daemon_and_says_why(tmp_path: Path):
    async with opened(tmp_path) as found:
        await found.enter()
        told = await read(found, "whatif?cpu=2.5&mem=1.5")
        assert words(told["parts"]).startswith(
            "would be admitted" if told["accepted"] else "would have to wait"
        )
        for wrong in ("cpu=-1", "cpu=x", "cpu=1&mem=1e99", "cpu=nan"):
            status, text = await refused(found, f"/api/whatif?{wrong}")
            assert status == 400
            assert "must be a number" in json.loads(text)["error"]


async def test_a_model_comes_as_curves_with_bounds_and_as_tables(tmp_path: Path):
    async with opened(tmp_path) as found:
        await found.enter()
        told = await read(found, "model?lra=db")
        assert {chart["title"] for chart in told["charts"]} == {
            "work by batch's cores",
            "delay by batch's cores",
        }
        for line in (line for chart in told["charts"] for line in chart["lines"]):
            assert all(
                low <= y <= high for low, y, high in zip(line["low"], line["y"], line["high"], strict=True)
            )
        assert any(part["kind"] == "table" for part in told["parts"])


def test_a_session_that_nobody_uses_ends():
    clock = [0.0]
    sessions = Sessions(now_s=lambda: clock[0])
    name = sessions.exchange(sessions.token)
    clock[0] = SESSION_S - 1.0
    sessions.find(name)
    clock[0] += SESSION_S - 1.0
    sessions.find(name)
    clock[0] += SESSION_S + 1.0
    with pytest.raises(RequestRefused):
        sessions.find(name)


def test_an_event_is_told_with_the_time_of_day():
    from perphd.commands.dashboard.picture import announced
    from perphd.domain.wire import encode

    event = encode(Event(30.0, EventKind.PAUSE, "paused", "db", by="root"))
    told = announced(event, 1_000_000.0)
    assert told is not None
    assert (told["at_s"], told["workload"], told["by"]) == (1_000_030.0, "db", "root")
    assert announced(encode(Event(30.0, EventKind.TICK, "tick 3")), 0.0) is None
