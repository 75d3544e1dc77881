"""Percentiles from a database server's own histogram."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import pymysql
import pytest

from perphd.domain.errors import ConfigError
from perphd.domain.reading import Reading, Unavailable, available
from perphd.monitor.sli import SliReading, measured_percentiles, open_source, validate_options
from perphd.monitor.sli.redis import NO_REQUESTS
from perphd.monitor.sli.server_latency import ServerLatency, of_redis, totals_of

DOUBLING = [2.0**n / 1000.0 for n in range(30)]


def reason(reading: Reading) -> str:
    assert isinstance(reading, Unavailable)
    return reading.reason


def buckets(latencies_ms: list[float]) -> list[tuple[float, float]]:
    """How many lie in each bucket whose bounds double."""
    counts = dict.fromkeys([*DOUBLING, math.inf], 0.0)
    for latency in latencies_ms:
        counts[next((bound for bound in DOUBLING if latency <= bound), math.inf)] += 1
    return list(counts.items())


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_of_an_interval_are_right_within_the_buckets(seed: int) -> None:
    rng = random.Random(seed)
    before = [rng.lognormvariate(4.0, 1.0) for _ in range(500)]
    during = [rng.lognormvariate(0.0, 1.0) for _ in range(2000)]
    latency = ServerLatency()
    latency.joined(SliReading(), totals_of(buckets(before)), 0.0)
    reading = latency.joined(SliReading(work_rate_per_s=1.0), totals_of(buckets(before + during)), 10.0)
    assert reading.work_rate_per_s == 1.0
    during.sort()
    told = (reading.latency_p50_ms, reading.latency_p95_ms, reading.latency_p99_ms)
    for share, latency_ms in zip((0.5, 0.95, 0.99), told, strict=True):
        truth = during[int(share * len(during))]
        assert available(latency_ms)
        assert 0.5 * truth <= latency_ms <= 2.0 * truth
    assert reading.p95.events == 2000


def test_a_percentile_waits_for_enough_requests() -> None:
    latency = ServerLatency()
    latency.joined(SliReading(), totals_of(buckets([1.0])), 0.0)
    reading = latency.joined(SliReading(), totals_of(buckets([1.0] * 51)), 1.0)
    assert available(reading.latency_p50_ms)
    assert not available(reading.latency_p99_ms)


def test_why_there_is_no_histogram_is_told_and_the_next_one_begins_anew() -> None:
    latency = ServerLatency()
    latency.joined(SliReading(), totals_of(buckets([1.0] * 1000)), 0.0)
    lost = latency.joined(SliReading(), Unavailable("not allowed"), 1.0)
    assert reason(lost.latency_p95_ms) == "not allowed"
    again = latency.joined(SliReading(), totals_of(buckets([1.0] * 9000)), 2.0)
    assert "first reading" in reason(again.latency_p50_ms)


@pytest.mark.parametrize(
    ("given_buckets", "why"),
    [
        ([(0.1, 5.0), (1.0, 5.0), (10.0, 5.0), (math.inf, 0.0)], "too far apart"),
        ([], "empty"),
    ],
)
def test_a_histogram_that_tells_nothing_is_refused(
    given_buckets: list[tuple[float, float]], why: str
) -> None:
    assert why in reason(totals_of(given_buckets))  # type: ignore[arg-type]


@pytest.mark.parametrize("as_map", [False, True])
def test_redis_counts_commands_of_clients_alone(as_map: bool) -> None:
    told: dict[bytes, list[int]] = {
        b"set": [1, 10, 2, 30, 33, 40],
        b"get": [2, 60],
        b"blpop": [67633, 9],
        b"latency|histogram": [132, 7],
    }
    answer: object = {
        name: {b"calls": pairs[-1], b"histogram_usec": dict(zip(pairs[::2], pairs[1::2], strict=True))}
        for name, pairs in told.items()
    }
    if not as_map:
        answer = [
            item
            for name, pairs in told.items()
            for item in (name, [b"calls", pairs[-1], b"histogram_usec", pairs])
        ]
    totals = of_redis(answer, NO_REQUESTS)
    assert not isinstance(totals, Unavailable)
    assert totals[0.001] == 10
    assert totals[0.002] == 90
    assert totals[0.032] == 100
    assert max(totals.values()) == 100


def test_redis_without_a_histogram_says_how_to_have_one() -> None:
    assert "latency-tracking" in reason(of_redis([], NO_REQUESTS))  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["redis", "mysql"])
def test_a_source_measures_what_its_latency_says(source: str) -> None:
    assert measured_percentiles(validate_options(source, {"latency": "server"})) == {"p50", "p95", "p99"}
    assert measured_percentiles(validate_options(source, {})) == frozenset()


class Cursor:
    """Answers as MySQL 8 does: 450 buckets, each a little wider than the one before, the last one endless."""

    def __init__(self, statements: int) -> None:
        self._statements, self._rows = statements, list[tuple[object, ...]]()

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, statement: str) -> None:
        if "performance_schema" in statement:
            bounds = [Decimal(f"{1e-5 * 1.0471**n:.10f}") for n in range(449)]
            self._rows = [(bound, self._statements * (n == 150), 1) for n, bound in enumerate(bounds)]
            self._rows.append((Decimal("18446744.0737"), 0, 1))
        else:
            self._rows = [("Uptime", "100"), ("Queries", "5")]

    def fetchall(self) -> list[tuple[object, ...]]:
        return self._rows


class Connection:
    def __init__(self) -> None:
        self.statements = 0

    def cursor(self) -> Cursor:
        self.statements += 200
        return Cursor(self.statements)

    def get_server_info(self) -> str:
        return "8.0.36"

    def close(self) -> None:
        pass


async def test_mysql_tells_percentiles_from_its_performance_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymysql, "connect", lambda **_: Connection())
    source = open_source(validate_options("mysql", {"latency": "server"}))
    await source.read(0.0)
    reading = await source.read(1.0)
    assert reading.p95.events == 200
    assert reading.latency_p95_ms == pytest.approx(1e-2 * 1.0471**150, rel=0.05)
    await source.close()


def test_postgresql_has_no_histogram() -> None:
    with pytest.raises(ConfigError, match="server"):
        validate_options("postgresql", {"latency": "server"})
