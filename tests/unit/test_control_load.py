"""What whoever may only read can take of the daemon's time: turns, and shares of CPU time."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perphd.agent.upkeep import OWN_NICE
from perphd.config.file import Config, StoreConfig
from perphd.control import openapi
from perphd.control.client import Client, Refused
from perphd.control.errors import ApiError, Code
from perphd.control.limits import ApiLimits
from perphd.control.read_throttle import ReadThrottle
from perphd.control.sql import CpuShare, Queries
from perphd.monitor.store import Store
from tests.unit.control_fake import ADMIN, READER, serving

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
SPILLS = """
    WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)
    SELECT length(b) FROM (SELECT x, zeroblob(900000) AS b FROM c ORDER BY x DESC, b)
"""
WITHIN_S = 60.0


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "perphd.db"
    store = Store(path, 1e9, 1 << 30)
    store.start()
    store.add_event(1e9, "x", "y")
    store.close()
    return Config(store=StoreConfig(path=str(path)))


# -- shares ---------------------------------------------------------------------------------------------------------


def test_what_was_used_is_forgotten_after_the_time_and_not_before():
    now = [100.0]
    share = CpuShare(WITHIN_S, lambda: now[0])
    share.add(2.0)
    now[0] = 130.5
    share.add(1.0)
    assert (share.used_s(), share.free_in_s(3.5)) == (3.0, 0.0)
    wait_s = share.free_in_s(3.0)
    now[0] += wait_s - 0.01
    assert share.used_s() == 3.0
    now[0] += 0.02
    assert share.used_s() == 1.0
    now[0] += WITHIN_S
    assert share.used_s() == 0.0


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 3)), max_size=40), st.floats(0.5, 20))
@example([(2.0, 0.9), (2.0, 0.6), (5.0, 0.8)], 0.8)  # 0.9 + 0.6 + 0.8 - 0.9 - 0.6 is less than 0.8
def test_after_the_wait_that_was_told_there_is_room(uses: list[tuple[float, float]], most_s: float):
    now = [0.0]
    share = CpuShare(WITHIN_S, lambda: now[0])
    for pause_s, cpu_s in uses:
        now[0] += pause_s
        share.add(cpu_s)
    now[0] += share.free_in_s(most_s) + 1e-6
    assert share.used_s() < most_s
    assert share.free_in_s(most_s) == 0.0


class Cpu:
    """CPU time that passes by being looked at."""

    def __init__(self, step_s: float) -> None:
        self.step_s, self.spent_s = step_s, 0.0

    def __call__(self) -> float:
        self.spent_s += self.step_s
        return self.spent_s


def asked(queries: Queries, sql: str, may_change: bool = False) -> bytes | ApiError:
    try:
        return asyncio.run(queries.answer(sql, 10, may_change))
    except ApiError as exc:
        return exc


def test_queries_have_a_share_of_cpu_time_and_administrators_some_for_themselves(config: Config):
    now, cpu = [100.0], Cpu(0.5)
    queries = Queries(config, ApiLimits(queries_cpu_s=12.0, reserved_queries_cpu_s=4.0), lambda: now[0], cpu)
    stopped = asked(queries, ENDLESS)
    assert isinstance(stopped, ApiError)
    assert stopped.code is Code.REFUSED
    assert "(limit 8 s); narrow it" in str(stopped)
    refused = asked(queries, "SELECT 1")
    assert isinstance(refused, ApiError)
    assert refused.code is Code.BUSY
    assert str(refused).endswith("try again in 61 s")
    assert cpu.spent_s < 10, "what was refused has used nothing"
    assert asked(queries, "SELECT 1", may_change=True) == b'{"columns":["1"],"rows":[[1]],"truncated":false}'
    now[0] += 61.0
    assert (
        asked(queries, "SELECT 1 AS a, 2 AS b") == b'{"columns":["a","b"],"rows":[[1,2]],"truncated":false}'
    )
    queries.end()


@pytest.mark.skipif(
    not Path("/proc/thread-self/io").exists(), reason="this kernel does not count written bytes"
)
def test_queries_do_not_fill_the_disk_with_temporary_files(config: Config):
    queries = Queries(config, ApiLimits(query_spill_bytes=8 << 20))
    refused = asked(queries, SPILLS)
    queries.end()
    assert isinstance(refused, ApiError)
    assert refused.code is Code.REFUSED
    assert "more than 8.0 MiB of temporary files" in str(refused)


def test_many_rows_are_answered_whole(config: Config):
    queries = Queries(config, ApiLimits())
    some = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 1203) SELECT x FROM c"
    body = asyncio.run(queries.answer(some, 2000, may_change=True))
    rows = ",".join(f"[{n}]" for n in range(1, 1204))
    assert body == f'{{"columns":["x"],"rows":[{rows}],"truncated":false}}'.encode()
    queries.end()


def test_queries_have_not_the_daemons_priority(config: Config, monkeypatch: pytest.MonkeyPatch):
    set_for: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "setpriority", lambda *call: set_for.append(call))
    queries = Queries(config, ApiLimits())
    ran_in: list[int] = []

    def cpu_s() -> float:
        ran_in.append(threading.get_native_id())
        return 0.0

    queries._cpu_s = cpu_s
    asked(queries, "SELECT 1")
    queries.end()
    assert set_for == [(os.PRIO_PROCESS, ran_in[0], ApiLimits().query_nice)]
    assert ApiLimits().query_nice > OWN_NICE
    assert ran_in[0] != threading.get_native_id()


def test_a_query_ends_with_the_daemon(config: Config):
    looked = threading.Event()

    def cpu_s() -> float:
        looked.set()
        return 0.0

    queries = Queries(config, ApiLimits(query_s=600.0), cpu_s=cpu_s)

    async def stop_meanwhile() -> None:
        running = asyncio.create_task(queries.answer(ENDLESS, 10, may_change=True))
        await asyncio.to_thread(looked.wait, 30)
        queries.end()
        await running

    with pytest.raises(ApiError, match="perphd is stopping"):
        asyncio.run(stop_meanwhile())
    assert "perphd is stopping" in str(asked(queries, "SELECT 1"))


# -- turns ----------------------------------------------------------------------------------------------------------


class Later:
    """A clock that stands still: what is to be called later is called when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay_s: float, call: Callable[[], None]) -> None:
        self.waiting.append((delay_s, call))

    def pass_by(self) -> float:
        delay_s, call = self.waiting.pop(0)
        call()
        return delay_s


def test_one_at_a_time_in_order_with_a_rest_after_each():
    async def story() -> None:
        cpu, later, order = [10.0], Later(), list[str]()
        throttle = ReadThrottle(ApiLimits(rest=4.0, least_answer_s=0.001), lambda: cpu[0], later)

        async def one(name: str) -> None:
            slot = await throttle.take()
            order.append(name)
            cpu[0] += 0.05
            slot.end()
            slot.end()

        asking = [asyncio.create_task(one(name)) for name in "abc"]
        for expected in ("a", "ab", "abc"):
            for _ in range(10):
                await asyncio.sleep(0)
            assert "".join(order) == expected
            assert later.pass_by() == pytest.approx(0.2)
            assert not later.waiting, "a turn ends once"
        await asyncio.gather(*asking)
        (await throttle.take()).end()
        assert later.pass_by() == pytest.approx(0.004), "at least"

    asyncio.run(story())


def test_no_more_wait_than_there_are_connections_and_who_leaves_takes_no_turn():
    async def story() -> None:
        later = Later()
        throttle = ReadThrottle(ApiLimits(connections=2), later=later)
        held = await throttle.take()
        waiting = [asyncio.create_task(throttle.take()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="2 requests are waiting already"):
            await throttle.take()
        waiting[0].cancel()
        await asyncio.sleep(0)
        held.end()
        later.pass_by()
        (await waiting[1]).end()

    asyncio.run(story())


def test_readers_are_answered_in_turns_and_administrators_at_once(tmp_path: Path):
    with serving(tmp_path) as served:
        rests: list[float] = []

        def at_once(delay_s: float, release: Callable[[], None]) -> None:
            rests.append(delay_s)
            release()

        served.server._throttle._later = at_once
        client = Client(served.socket)
        served.peer = ADMIN
        client.get("status")
        assert rests == []
        served.peer = READER
        client.get("status")
        assert len(rests) == 1
        with pytest.raises(Refused):
            client.get("nothing/here")
        assert len(rests) == 2, "errors are answers, too"
        stream = client.events()
        next(stream)
        assert len(rests) == 3, "a stream keeps nobody waiting"
        client.get("status")
        stream.close()


def test_the_description_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []
    text = openapi.text()

    def make() -> str:
        made.append(text)
        return text

    monkeypatch.setattr(openapi, "text", make)
    with serving(tmp_path) as served:
        client = Client(served.socket)
        assert client.get("openapi.json") == client.get("openapi.json") == openapi.document()
    assert len(made) == 1


def test_a_reader_whose_body_does_not_arrive_does_not_delay_other_readers(tmp_path: Path):
    with serving(tmp_path, ApiLimits(body_s=60.0, shutdown_s=0.5)) as served:
        served.peer = READER
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
            slow.connect(served.socket)
            slow.sendall(b"POST /v1/whatif HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
            assert Client(served.socket, timeout_s=5.0).get("shaper")["mode"]


def test_a_reader_that_disconnects_within_its_body_writes_nothing_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with serving(tmp_path) as served:
        served.peer = READER
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as slow:
            slow.connect(served.socket)
            slow.sendall(b"POST /v1/whatif HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        assert Client(served.socket).get("shaper")["mode"]
    assert not caplog.records
