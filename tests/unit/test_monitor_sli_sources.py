"""SLI sources that need no server of somebody else's: file, command, push, and those with a small stand-in."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from perphd.domain.errors import ParseError
from perphd.domain.reading import Awaited, Reading, Unavailable, available
from perphd.monitor.sli import SLI_FIELDS, PushSource, SliReading, SliSource, open_source, validate_options
from perphd.monitor.sli.keyed import parse_indicators
from perphd.monitor.sli.mysql import MySqlSource
from perphd.monitor.sli.polled import AnsweredAt, PolledSource, SliError
from perphd.monitor.sli.prometheus import HistogramGrowth, quantile
from perphd.monitor.sli.threaded import ThreadedSource


def source(name: str, **options: str) -> SliSource:
    return open_source(validate_options(name, options))


def reason(reading: Reading) -> str:
    assert isinstance(reading, Unavailable)
    return reading.reason


# -- the text format ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12.5\n", {"work_rate_per_s": 12.5}),
        ("# so far\n\n 3 # now\n", {"work_rate_per_s": 3.0}),
        ("work_rate_per_s=1\nlatency_p95_ms = 7e1\n", {"work_rate_per_s": 1.0, "latency_p95_ms": 70.0}),
        ("work_total=9", {"work_total": 9.0}),
    ],
)
def test_indicators(text: str, expected: dict[str, float]):
    assert parse_indicators(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", "-1", "nan", "inf", "1_000", "1 2", "1\n2", "fast", "x=1", "work_rate_per_s=", "٣"),
        *("load_per_s=1\nload_per_s=2", "work_rate_per_s=1\nwork_total=2", "load_per_s=1\n5"),
    ],
)
def test_refused_indicators(text: str):
    with pytest.raises(ParseError):
        parse_indicators(text)


@given(st.text())
def test_any_text_is_indicators_or_refused(text: str):
    try:
        found = parse_indicators(text)
    except ParseError:
        return
    assert found
    assert all(value >= 0 for value in found.values())


# -- file ---------------------------------------------------------------------------------------------------


def put(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    os.replace(part, path)


async def test_file_that_lay_there_before_is_not_believed(tmp_path: Path):
    path = tmp_path / "sli"
    put(path, "5")
    watched = source("file", path=str(path))
    assert "waiting for its first change" in reason((await watched.read(0.0)).work_rate_per_s)
    put(path, "6")
    assert (await watched.read(1.0)).work_rate_per_s == 6.0


async def test_file_that_appears_is_new_and_grows_stale(tmp_path: Path):
    path = tmp_path / "sli"
    watched = source("file", path=str(path), max_age_s="3")
    assert "No such file" in reason((await watched.read(0.0)).work_rate_per_s)
    put(path, "latency_p95_ms=4")
    reading = await watched.read(1.0)
    assert reading.latency_p95_ms == 4.0
    assert reason(reading.work_rate_per_s) == "the source did not provide this value"
    assert isinstance((await watched.read(4.0)).latency_p95_ms, Awaited), "it is handed on once"
    assert "stale" in reason((await watched.read(4.5)).latency_p95_ms)
    put(path, "latency_p95_ms=5")
    assert (await watched.read(5.0)).latency_p95_ms == 5.0


async def test_file_with_a_total_gives_its_rate(tmp_path: Path):
    path = tmp_path / "sli"
    watched = source("file", path=str(path))
    await watched.read(0.0)
    readings: list[Reading] = []
    for second, total in ((1.0, 100), (3.0, 300), (4.0, 50), (5.0, 60)):
        put(path, f"work_total={total}")
        readings.append((await watched.read(second)).work_rate_per_s)
    assert not available(readings[0])
    assert readings[1] == pytest.approx(100.0)
    assert "backwards" in reason(readings[2])
    assert readings[3] == pytest.approx(10.0)


async def test_unreadable_files_are_reasons(tmp_path: Path):
    path = tmp_path / "sli"
    watched = source("file", path=str(path))
    await watched.read(0.0)
    put(path, "what?")
    assert "is not a set of indicators" in reason((await watched.read(1.0)).work_rate_per_s)
    put(path, "#" * 70000)
    assert "larger than" in reason((await watched.read(2.0)).work_rate_per_s)
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in reason((await watched.read(3.0)).work_rate_per_s)


# -- push ---------------------------------------------------------------------------------------------------


async def test_push_holds_for_its_age():
    pushed = source("push", max_age_s="2")
    assert isinstance(pushed, PushSource)
    assert "nothing has been pushed" in reason((await pushed.read(0.0)).work_rate_per_s)
    pushed.push(SliReading(work_rate_per_s=5.0), 10.0)
    assert (await pushed.read(11.0)).work_rate_per_s == 5.0
    assert isinstance((await pushed.read(12.0)).work_rate_per_s, Awaited), "it is handed on once"
    assert "stale" in reason((await pushed.read(12.1)).work_rate_per_s)


# -- command ------------------------------------------------------------------------------------------------


def python(program: str) -> str:
    return shlex.join([sys.executable, "-c", program])


async def test_command_prints_indicators_and_is_run_when_due(tmp_path: Path):
    counter = tmp_path / "runs"
    script = f"printf x >> {counter}; echo load_per_s=$(stat -c %s {counter})"
    ran = source("command", command=shlex.join(["/bin/sh", "-c", script]), every_s="10")
    assert (await ran.read(0.0)).load_per_s == 1.0
    assert reason((await ran.read(5.0)).load_per_s) == "the command is run every 10 s"
    assert (await ran.read(10.0)).load_per_s == 2.0


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/bin/sh -c 'echo broken >&2; exit 3'", "exit status 3: broken"),
        ("/bin/echo fast", "is not a set of indicators"),
        ("/nonexistent/tool", "cannot be run"),
        ("/bin/sh -c 'head -c 100000 /dev/zero'", "prints more than"),
    ],
)
async def test_commands_that_fail_are_reasons(command: str, expected: str):
    assert expected in reason((await source("command", command=command).read(0.0)).work_rate_per_s)


async def test_hanging_command_is_killed_with_its_children(tmp_path: Path):
    pids = tmp_path / "pids"
    hanging = f"sleep 60 & echo $! $$ > {pids}; wait"
    ran = source("command", command=shlex.join(["/bin/sh", "-c", hanging]), timeout_s="1")
    assert "no answer within 1 s" in reason((await ran.read(0.0)).work_rate_per_s)
    child, shell = (int(pid) for pid in pids.read_text().split())
    await asyncio.to_thread(wait_for_end, shell)
    await asyncio.to_thread(wait_for_end, child)


def wait_for_end(pid: int) -> None:
    while alive(pid):  # killed, and on the way out
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# -- what all polled sources share --------------------------------------------------------------------------


class Moody(PolledSource):
    def __init__(self) -> None:
        super().__init__("moody", 0.05)
        self.asked = self.closed = 0
        self.mood: Callable[[], SliReading] = SliReading

    async def _ask(self, answered_at: AnsweredAt) -> SliReading:
        self.asked += 1
        return self.mood()

    async def close(self) -> None:
        self.closed += 1


async def test_failures_are_retried_later_and_later():
    def fail() -> SliReading:
        raise OSError("refused")

    moody = Moody()
    moody.mood = fail
    attempts = []
    for second in range(100):
        before = moody.asked
        reading = await moody.read(float(second))
        assert "refused" in reason(reading.load_per_s)
        if moody.asked > before:
            attempts.append(second)
    assert attempts == [0, 1, 3, 7, 15, 31, 61, 91]
    assert moody.closed == len(attempts)
    moody.mood = lambda: SliReading(load_per_s=1.0)
    assert (await moody.read(200.0)).load_per_s == 1.0
    moody.mood = fail
    await moody.read(201.0)
    await moody.read(202.0)
    assert moody.asked == len(attempts) + 3  # the waiting time is short again


async def test_cancellation_passes_through():
    class Hanging(Moody):
        async def _ask(self, answered_at: AnsweredAt) -> SliReading:
            await asyncio.sleep(60)
            return SliReading()

    hanging = Hanging()
    hanging._timeout_s = 60.0
    task = asyncio.ensure_future(hanging.read(0.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class SlowClient(ThreadedSource):
    """A database client that hangs until it is let go."""

    def __init__(self) -> None:
        import threading

        super().__init__("slow", 0.05)
        self.let_go = threading.Event()
        self.disconnected = threading.Event()

    def _query(self) -> Mapping[str, int]:
        self.let_go.wait(10.0)
        return {"n": 7}

    def _disconnect(self) -> None:
        self.disconnected.set()
        raise SliError("was broken anyway")

    def _reading(self, counters: Mapping[str, int], at_s: float) -> SliReading:
        return SliReading(work_rate_per_s=float(counters["n"]))


async def test_hung_client_holds_nobody_up_and_recovers():
    slow = SlowClient()
    assert "no answer within" in reason((await slow.read(0.0)).work_rate_per_s)
    assert "still unanswered" in reason((await slow.read(10.0)).work_rate_per_s)
    slow.let_go.set()
    await asyncio.to_thread(slow.disconnected.wait, 10.0)
    slow._timeout_s = 10.0
    assert (await slow.read(100.0)).work_rate_per_s == 7.0
    await slow.close()
    await slow.close()
    assert "after shutdown" in reason((await slow.read(200.0)).work_rate_per_s)


async def test_a_slow_server_is_asked_again_sooner_than_one_that_refuses():
    slow, refusing = SlowClient(), source("command", command="/nonexistent/tool", every_s="1")
    assert isinstance(refusing, PolledSource)
    slow.let_go.set()
    for now_s in (0.0, 10.0, 20.0, 40.0, 80.0, 160.0):
        slow._timeout_s = 0.0
        assert "no answer within" in reason((await slow.read(now_s)).work_rate_per_s)
        await asyncio.wrap_future(slow._thread.submit(lambda: None))  # its thread is idle again
        await refusing.read(now_s)
    assert slow._retry.until_s == 164.0
    assert refusing._retry.until_s > 170.0
    await slow.close()
    await refusing.close()


# -- Prometheus ---------------------------------------------------------------------------------------------


class Exposition:
    """A server on loopback whose answer the test sets."""

    def __init__(self) -> None:
        self.text, self.status, self.url = "", 200, ""

    async def answer(self, _: web.Request) -> web.Response:
        return web.Response(text=self.text, status=self.status, content_type="text/plain")


@asynccontextmanager
async def exposing() -> AsyncIterator[Exposition]:
    exposition = Exposition()
    app = web.Application()
    app.router.add_get("/metrics", exposition.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    exposition.url = "http://{}:{}/metrics".format(*runner.addresses[0][:2])
    try:
        yield exposition
    finally:
        await runner.cleanup()


async def test_prometheus_counter_gauge_and_summary():
    async with exposing() as app:
        scraped = source(
            "prometheus",
            url=app.url,
            timeout_s="10",
            work='http_requests_total{code="200"}',
            load="offered",
            latency_p95='rpc_seconds{quantile="0.95"}',
            latency_p99='rpc_seconds{quantile="0.99"}',
        )
        page = (
            "# HELP other x\n# TYPE other gauge\nother 5\n# TYPE http_requests_total counter\n"
            'http_requests_total{{code="200",path="/a"}} {a}\nhttp_requests_total{{code="200",path="/b"}} {b}\n'
            'http_requests_total{{code="500",path="/a"}} 999\n# TYPE offered gauge\noffered 77.5\n'
            '# TYPE rpc_seconds summary\nrpc_seconds{{quantile="0.95",m="x"}} 0.25\n'
            'rpc_seconds{{quantile="0.95",m="y"}} 0.5\nrpc_seconds{{quantile="0.99"}} NaN\nrpc_seconds_count 3\n'
        )
        app.text = page.format(a=100, b=50)
        first = await scraped.read(0.0)
        assert not available(first.work_rate_per_s)
        assert first.load_per_s == 77.5
        assert first.latency_p95_ms == 500.0
        assert "no number" in reason(first.latency_p99_ms)
        app.text = page.format(a=1100, b=1050)
        # The interval is measured when the answer arrives: a little longer than between the calls' times, or shorter.
        assert (await scraped.read(1000.0)).work_rate_per_s == pytest.approx(2.0, rel=0.01)
        app.text = page.format(a=1, b=1)
        assert "backwards" in reason((await scraped.read(2000.0)).work_rate_per_s)
        await scraped.close()


@pytest.mark.parametrize(
    ("page", "kind", "expected"),
    [
        ("# TYPE queries counter\nqueries {}\n", "auto", 1.0),  # a counter without the usual ending
        ("# TYPE queries untyped\nqueries {}\n", "counter", 1.0),
        ("queries {}\n", "auto", 3000.0),
        ("queries_total {}\n", "auto", 1.0),
        ("queries_total {}\n", "gauge", 3000.0),
    ],
)
async def test_prometheus_kinds_of_metrics(page: str, kind: str, expected: float):
    async with exposing() as app:
        name = "queries_total" if "_total" in page else "queries"
        scraped = source("prometheus", url=app.url, timeout_s="10", work=name, kind=kind)
        app.text = page.format(2000)
        await scraped.read(0.0)
        app.text = page.format(3000)
        assert (await scraped.read(1000.0)).work_rate_per_s == pytest.approx(expected, rel=0.01)
        await scraped.close()


async def test_prometheus_histogram_gives_percentiles_of_the_interval():
    async with exposing() as app:
        scraped = source(
            "prometheus", url=app.url, timeout_s="10", latency_histogram="lat", latency_unit="ms"
        )

        def page(*buckets: int) -> str:
            bounds = ("10", "20", "40", "+Inf")
            lines = [f'lat_bucket{{le="{le}"}} {n}' for le, n in zip(bounds, buckets, strict=True)]
            return "# TYPE lat histogram\n" + "\n".join(lines) + f"\nlat_count {buckets[-1]}\nlat_sum 1\n"

        app.text = page(1000, 1000, 1000, 1000)  # long ago, all fast
        assert "first reading" in reason((await scraped.read(0.0)).latency_p50_ms)
        app.text = page(1000, 1060, 1100, 1100)
        reading = await scraped.read(100.0)
        assert reading.latency_p50_ms == pytest.approx(10 + 10 * 50 / 60)
        assert reading.latency_p95_ms == pytest.approx(20 + 20 * 35 / 40)
        assert reading.p95.events == 100.0
        assert reason(reading.latency_p99_ms).startswith("too few requests: 100 of 500 within")
        app.text = page(1000, 1063, 1105, 1105)
        few = await scraped.read(102.0)
        assert reason(few.latency_p50_ms) == "waiting for requests: 5 of 10"
        assert reason(few.latency_p95_ms) == "waiting for requests: 5 of 100"
        assert few.is_awaited("p95")
        assert not few.is_awaited("p99"), "too few of late: that is so until there are enough"
        app.text = page(1000, 1066, 1112, 1112)
        more = await scraped.read(104.0)
        assert more.latency_p50_ms == pytest.approx(10 + 10 * 6 / 6)
        assert more.p50.events == 12.0, "those that were waited for are among them"
        await scraped.close()


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [(503, "", "status 503"), (200, "other 1\n", "no number for work"), (200, "work{ 1\n", "text format")],
)
async def test_prometheus_answers_that_are_none(status: int, text: str, expected: str):
    async with exposing() as app:
        app.status, app.text = status, text
        scraped = source("prometheus", url=app.url, timeout_s="10", work="work")
        assert expected in reason((await scraped.read(0.0)).work_rate_per_s)
        await scraped.close()


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (503, "", "status 503"),
        (200, "other 1\n", "no number for work"),
        (200, "work 1\n", "no number for p95"),
        (200, "work 1\n", "no lat_bucket"),
        (200, "work{ 1\n", "text format"),
        (200, "x" * 20, "more than"),
    ],
)
async def test_no_reason_names_the_account(
    status: int, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
):
    if expected == "more than":
        monkeypatch.setattr("perphd.monitor.sli.prometheus.MAX_BODY_BYTES", 10)
    latency = {"latency_histogram": "lat"} if "bucket" in expected else {"latency_p95": "p95"}
    async with exposing() as app:
        app.status, app.text = status, text
        url = app.url.replace("http://", "http://me:hunter@2x@")
        scraped = source("prometheus", url=url, timeout_s="10", work="work", **latency)
        reading = await scraped.read(0.0)
        await scraped.close()
    found = [getattr(reading, field) for field in SLI_FIELDS]
    said = [value.reason for value in found if isinstance(value, Unavailable)]
    assert any(expected in words for words in said), said
    assert any("http://***@127.0.0.1" in words for words in said), said
    assert not any("hunter" in words or "2x" in words for words in said), said


async def test_what_a_client_library_says_of_a_url_names_no_account(monkeypatch: pytest.MonkeyPatch):
    scraped = source("prometheus", url="http://me:secret@localhost/m", timeout_s="10", work="work")

    async def asks(_: object) -> None:
        raise ValueError("http://me:secret@localhost/m is not to my liking")

    monkeypatch.setattr(scraped, "_ask", asks)
    said = reason((await scraped.read(0.0)).work_rate_per_s)
    assert said == "prometheus: ValueError: http://***@localhost/m is not to my liking"


async def test_nobody_listens():
    for options in (
        {"name": "prometheus", "url": "http://127.0.0.1:9/metrics", "work": "x"},
        {"name": "redis", "socket": "/nonexistent/redis.sock"},
        {"name": "mysql", "socket": "/nonexistent/mysql.sock"},
        {"name": "postgresql", "socket": "/nonexistent/.s.PGSQL.5432"},
        {"name": "mysql", "password_file": "/nonexistent/password"},
    ):
        name = options.pop("name")
        asked = source(name, timeout_s="10", **options)
        reading = await asked.read(0.0)
        assert reading.is_missing()
        assert reason(reading.work_rate_per_s).startswith(name)
        await asked.close()


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.floats(0.01, 0.99))
def test_quantile_lies_within_the_bounds_and_grows_with_the_share(counts: list[int], share: float):
    totals, cumulative = {}, 0
    for n, count in enumerate(counts):
        cumulative += count
        totals[float(n + 1)] = float(cumulative)
    totals[float("inf")] = float(cumulative)
    growth = HistogramGrowth()
    growth.update(dict.fromkeys(totals, 0.0), 0.0)
    _, grown = growth.update(totals, 1.0)
    if not grown:
        assert cumulative == 0
        return
    assert 0.0 <= quantile(grown, share) <= len(counts)
    assert quantile(grown, share) <= quantile(grown, 0.999)


# -- Redis --------------------------------------------------------------------------------------------------


class FakeRedis:
    """Answers on a Unix socket; ``calls``: the counts of INFO commandstats. Counts every command after its answer."""

    def __init__(self, path: Path) -> None:
        self.path, self.calls = path, {"get": 600, "config|get": 50, "hello": 7}
        self.counts, self.drops = True, False

    async def __aenter__(self) -> FakeRedis:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while header := await reader.readline():
            words = []
            for _ in range(int(header[1:])):
                length = int((await reader.readline())[1:])
                words.append((await reader.readexactly(length + 2))[:-2].decode().lower())
            if words[0] != "info":
                writer.write(b"+OK\r\n")
            elif self.drops:
                writer.close()
            else:
                lines = [f"# {words[1]}", f"total_commands_processed:{sum(self.calls.values())}"]
                if words[1] == "commandstats":
                    lines[1:] = [
                        f"cmdstat_{name}:calls={calls},usec=9,usec_per_call=0.00,rejected_calls=0,failed_calls=0"
                        for name, calls in self.calls.items()
                    ]
                body = "".join(f"{line}\r\n" for line in lines)
                writer.write(f"${len(body)}\r\n{body}\r\n".encode())
            name = "|".join(words[:2]) if words[0] == "client" else words[0]
            if self.counts:
                self.calls[name] = self.calls.get(name, 0) + 1
            if self.drops:
                break
            await writer.drain()


async def test_redis_counts_the_work_and_no_administration(tmp_path: Path):
    async with FakeRedis(tmp_path / "redis.sock") as server:
        asked = source("redis", socket=str(server.path), timeout_s="10")
        assert not available((await asked.read(0.0)).work_rate_per_s)
        server.calls["get"] += 1500
        server.calls["config|get"] += 300  # somebody else's monitoring
        server.calls |= {"zadd": 500, "slowlog|get": 700, "replconf": 40}
        reading = await asked.read(1000.0)
        assert reading.work.events == 2000
        assert reading.work_rate_per_s == pytest.approx(2.0, rel=0.01)
        assert not available(reading.load_per_s)
        server.calls = {"get": 3}
        assert "restarted" in reason((await asked.read(2000.0)).work_rate_per_s)
        server.calls["get"] += 1000
        assert (await asked.read(3000.0)).work_rate_per_s == pytest.approx(1.0, rel=0.01)
        await asked.close()


async def test_redis_counts_no_command_of_its_own_after_a_lost_connection(tmp_path: Path):
    async with FakeRedis(tmp_path / "redis.sock") as server:
        asked = source("redis", socket=str(server.path), timeout_s="10")
        await asked.read(0.0)
        server.drops = True
        assert "redis" in reason((await asked.read(10.0)).work_rate_per_s)
        server.drops = False
        server.calls["get"] += 5
        assert (await asked.read(20.0)).work.events == 5
        await asked.close()


async def test_redis_that_lists_no_commands_has_no_rate(tmp_path: Path):
    async with FakeRedis(tmp_path / "redis.sock") as server:
        server.calls, server.counts = {}, False
        asked = source("redis", socket=str(server.path), timeout_s="10")
        assert "INFO commandstats lists no commands" in reason((await asked.read(0.0)).work_rate_per_s)
        await asked.close()


def test_readings_know_when_nothing_is_there():
    assert SliReading().is_missing()
    assert not SliReading(latency_p99_ms=0.0).is_missing()
    assert len(SLI_FIELDS) == 5


async def test_no_rate_spans_a_restart_after_which_more_was_counted():
    asked = source("mysql", socket="/none", metric="transactions", resolution_s="5")
    assert isinstance(asked, MySqlSource)
    rates: dict[float, float] = {}
    # 50 a second; from a restart just before 8 s on 100 a second, and 400 at once: more than the server before
    for at_s, uptime_s, commits in (
        (0, 1000, 10), (1, 1001, 60), (7, 1007, 360), (8, 1, 400), (9, 2, 500), (14, 7, 1000), (19, 12, 1500),
        (24, 17, 2000),
    ):  # fmt: skip
        reading = asked._reading({"Uptime": uptime_s, "Com_commit": commits, "Com_rollback": 0}, float(at_s))
        if available(reading.work_rate_per_s):
            rates[at_s] = reading.work_rate_per_s
    await asked.close()
    assert rates.pop(7) == pytest.approx(50.0)
    assert rates
    assert list(rates.values()) == pytest.approx([100.0] * len(rates))
