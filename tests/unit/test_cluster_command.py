"""perphctl cluster against a served extender."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from perphd.adapters.kubernetes.documents import DocumentCache
from perphd.adapters.kubernetes.extender import ExtenderServer
from perphd.cluster.document import NodeDocument
from perphd.cluster.extender import filtered
from perphd.cluster.publisher_state import PublisherState, publisher_of
from perphd.commands.cli import cli
from perphd.domain.errors import PerphError
from tests.unit.test_cluster_extender import call, document, read


def _given(each: NodeDocument) -> NodeDocument:
    return each


def _broken() -> NodeDocument:
    raise PerphError("document.generation is missing")


@pytest.fixture
def extender() -> Iterator[str]:
    cache = DocumentCache()
    cache.keep_only({})
    cache.put("roomy", partial(_given, document()))
    cache.put("tight", partial(_given, document(free=1.0)))
    cache.put("odd", _broken)
    now_s = time.time()
    cache.hear("roomy", PublisherState("1.2", now_s, 30.0))
    cache.hear("tight", PublisherState("1.2", now_s, 30.0, "PATCH nodes/tight/status: 403: no", 65.0))
    cache.hear("odd", None)
    server = ExtenderServer(cache, "optum")
    assert filtered(cache.known, read(call("roomy")), "optum", 0.0)["NodeNames"] == ["roomy"]
    loop, started, port = asyncio.new_event_loop(), threading.Event(), [0]

    async def serve() -> None:
        runner = web.AppRunner(server.app())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port[0] = runner.addresses[0][1]
        await server._filter(json.dumps(call("roomy", "tight")).encode())
        started.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(20)
    yield f"http://127.0.0.1:{port[0]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def ask(*words: str) -> Result:
    return CliRunner().invoke(cli, ["cluster", *words])


def test_the_fleet_in_words_and_as_json(extender: str) -> None:
    told = ask("--extender", extender)
    assert told.exit_code == 0, told.output
    assert "2 nodes, 0 stale" in told.output
    lines = told.output.splitlines()
    roomy = next(i for i, line in enumerate(lines) if line.startswith("roomy"))
    assert lines[roomy + 1].startswith("tight")  # more room first
    publishers = lines[
        lines.index("3 publishers, 0 silent, 1 with a problem, 1 whose version reports no state") :
    ]
    odd, tight = (next(line for line in publishers if line.startswith(name)) for name in ("odd", "tight"))
    assert "document.generation is missing" in odd
    assert "PATCH nodes/tight/status: 403: no (for 65 s)" in tight
    assert not any(line.startswith("roomy") for line in publishers), "it has no trouble"
    data: Any = json.loads(ask("--extender", extender, "--json").output)
    assert [each["node"] for each in data["nodes"]] == ["roomy", "tight"]
    assert [each["node"] for each in data["publishers"]] == ["odd", "roomy", "tight"]


def test_a_publisher_is_silent_by_this_hosts_clock_once_no_round_is_heard() -> None:
    now_s = [1000.0]
    cache = DocumentCache(clock=lambda: now_s[0])
    before = PublisherState("1", 400.0, 30.0)
    cache.hear("n", before)
    silent = cache.publishers["n"]
    assert silent is not None
    assert silent.is_silent(now_s[0]), "its last round was long before this process's start"
    cache.keep_only({"n"})
    cache.hear("n", replace(before, heard_unix_s=9e9))  # its clock is wrong
    cache.hear("late", before)
    now_s[0] += 30.0
    cache.hear("n", replace(before, heard_unix_s=9e9, problem="a slot was taken"))  # the same round
    assert {node: each.is_silent(now_s[0]) for node, each in cache.publishers.items() if each} == {
        "n": False, "late": False,
    }  # fmt: skip
    now_s[0] += 0.1
    assert all(each is not None and each.is_silent(now_s[0]) for each in cache.publishers.values())
    cache.keep_only({"n"})
    assert set(cache.publishers) == {"n"}


@pytest.mark.parametrize(
    "status", [None, [], {"publisher": "x"}, {"publisher": {"version": "1", "heardUnix": "x"}}]
)
def test_a_profile_without_a_readable_publisher_has_none(status: Any) -> None:
    assert publisher_of({"status": status}) is None
    state = PublisherState("1", 2.0, 3.0, "p" * 400, 4.0)
    assert publisher_of({"status": {"publisher": state.as_status()}}) == replace(state, problem="p" * 300)


def test_why_a_pod_went_where_it_went(extender: str) -> None:
    told = ask("--extender", extender, "--pod", "batch/pi-7x9")
    assert told.exit_code == 0, told.output
    assert "2 candidates" in told.output
    assert "copper has too little room" in told.output
    assert "utilisation" in told.output
    unknown = ask("--extender", extender, "--pod", "batch/other")
    assert unknown.exit_code == 3
    assert "no recent call about batch/other" in unknown.output


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://x", "nonsense"])
def test_without_an_extender_it_says_so(url: str) -> None:
    told = ask("--extender", url)
    assert told.exit_code == 3
    assert url in told.output
