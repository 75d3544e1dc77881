"""The fleet page says what perphctl cluster says, and why it cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from perphd.commands.cli import cli
from perphd.commands.dashboard.fleet_page import FleetPage
from perphd.control.client import Unreachable
from tests.unit.test_cluster_command import extender

FIXTURES = (extender,)


def cells(data: dict[str, Any], caption: str) -> list[list[str]]:
    (found,) = (part for part in data["parts"] if part["kind"] == "table" and part["caption"] == caption)
    return [[cell["text"] for cell in row] for row in found["rows"]]


async def test_nodes_and_calls_are_those_of_the_command(extender: str) -> None:
    data = await FleetPage(extender).read()
    assert data["extender"] == extender
    assert [row[0] for row in cells(data, "Nodes")] == ["roomy", "tight"]
    assert cells(data, "Calls of the scheduler")[0][0] == "filter"
    told = CliRunner().invoke(cli, ["cluster", "--extender", extender]).output
    for part in data["parts"]:
        for line in part.get("lines", ()):
            assert line["text"] in told
    assert any(
        "2 LRAs, 0 degraded" in line["text"] for part in data["parts"] for line in part.get("lines", ())
    )


async def test_a_pods_placement(extender: str) -> None:
    page = FleetPage(extender)
    data = await page.explain("batch/pi-7x9")
    assert any(row[0]["text"] == "copper has too little room" for row in data["parts"][1]["rows"])
    with pytest.raises(Unreachable, match="no recent call about batch/other"):
        await page.explain("batch/other")


async def test_without_an_extender_the_page_says_so() -> None:
    assert await FleetPage("").read() == {"parts": [], "extender": ""}
    with pytest.raises(Unreachable, match="no extender is named"):
        await FleetPage("").explain("a/b")
    with pytest.raises(Unreachable, match="no perphd-extender answers"):
        await FleetPage("http://127.0.0.1:9").read()
    told = CliRunner().invoke(cli, ["dashboard", "--extender", "ftp://x"])
    assert told.exit_code != 0
    assert "must begin with http:// or https://" in told.output


@asynccontextmanager
async def answering(text: str) -> AsyncIterator[tuple[str, list[str]]]:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text=text)

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}", '{"nodes": [{}]}', '{"nodes": null}'])
async def test_another_server_is_not_taken_for_an_extender(text: str) -> None:
    async with answering(text) as (url, _):
        with pytest.raises(Unreachable):
            await FleetPage(url).read()


async def test_many_pages_ask_once() -> None:
    fleet = (
        '{"version": "1", "policy": "optum", "binds": false, "synced": true, "nodes": [], "calls": {}, '
        '"refused": {}, "problems": []}'
    )
    async with answering(fleet) as (url, asked):
        page = FleetPage(url)
        for _ in range(5):
            await page.read()
        assert asked == ["/fleet"]
