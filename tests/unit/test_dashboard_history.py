"""The dashboard's plots: buckets of the store's samples, gaps, targets, and the decisions between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perphd.commands.dashboard.history import LEAST_BUCKET_S, POINTS, RANGES_S, Grid, history
from perphd.commands.dashboard.sources import Query, quoted
from perphd.monitor.query import run_query
from perphd.monitor.schema import open_database

BEGAN_S = 1_700_000_000.0
LRA = "it's db"
GRID = Grid(BEGAN_S, 10.0, 6)


class Store:
    """A store that is filled by hand."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store.db"
        self._connection = open_database(self._path)

    def sample(self, at_s: float, quality: str = "", **readings: float) -> None:
        names = ["wall_s", "at_s", "interval_s", "workload", "quality", *readings]
        values = [BEGAN_S + at_s, at_s, 1.0, LRA, quality, *readings.values()]
        places = ", ".join("?" * len(values))
        self._connection.execute(f"INSERT INTO samples ({', '.join(names)}) VALUES ({places})", values)

    def decision(
        self, at_s: float, action: str, work: float | None, delay: float | None, reason: str = "because"
    ) -> None:
        self._connection.execute(
            "INSERT INTO decisions VALUES (?, ?, ?, ?, 'degraded', 'cpu', ?, ?, ?, 'perph', '{}', 'enforce')",
            (BEGAN_S + at_s, at_s, LRA, action, work, delay, reason),
        )

    def query(self, sql: str) -> list[list[Any]]:
        return [list(row) for row in run_query(self._path, sql).rows]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def shown(store: Store, grid: Grid = GRID) -> dict[str, Any]:
    query: Query = store.query
    data = history(query, {LRA: "p95"}, grid)
    json.dumps(data, allow_nan=False)
    lra: dict[str, Any] = data["lras"][LRA]
    return lra


def test_a_bucket_has_the_mean_of_its_samples_and_latency_also_the_greatest(store: Store):
    for at_s, ms in ((0.0, 10.0), (5.0, 30.0), (12.0, 7.0)):
        store.sample(at_s, work_rate_per_s=100.0 + at_s, latency_p95_ms=ms, cpu_usage_cores=1.5)
    found = shown(store)
    assert found["delay"][:2] == [20.0, 7.0]
    assert found["delay_most"][:2] == [30.0, 7.0]
    assert found["work"][:2] == [102.5, 112.0]
    assert (found["delay_source"], found["delay_unit"]) == ("latency_p95_ms", "ms")
    assert (found["work_source"], found["work_unit"]) == ("sli", "/s")


def test_where_nothing_was_measured_there_is_a_gap(store: Store):
    store.sample(1.0, latency_p95_ms=10.0)
    store.sample(41.0, latency_p95_ms=12.0)
    found = shown(store)
    assert found["delay"] == [10.0, None, None, None, 12.0, None]
    assert found["work"] == [None] * 6
    assert found["cpu"] == [None] * 6


def test_samples_that_tell_nothing_new_do_not_count(store: Store):
    store.sample(1.0, latency_p95_ms=10.0)
    for quality in ("between", "first", "restarted,first"):
        store.sample(2.0, quality, latency_p95_ms=500.0)
    assert shown(store)["delay"][0] == 10.0


def test_values_of_another_source_are_not_mixed_in(store: Store):
    for at_s in (1.0, 11.0, 31.0):
        store.sample(at_s, latency_p95_ms=10.0)
    store.sample(21.0, cpu_usage_cores=2.0, run_delay_cores=1.0)
    found = shown(store)
    assert found["delay"] == [10.0, 10.0, None, 10.0, None, None]
    assert found["cpu"][2] == 2.0


def test_the_target_is_that_of_the_newest_decision_where_something_was_measured(store: Store):
    store.decision(-500.0, "hold", 90.0, 20.0)
    store.decision(23.0, "grow", 80.0, None)
    for at_s in (1.0, 11.0, 21.0, 51.0):
        store.sample(at_s, latency_p95_ms=10.0, work_rate_per_s=5.0)
    found = shown(store)
    assert found["target_work"] == [90.0, 90.0, 80.0, None, None, 80.0]
    assert found["target_delay"] == [20.0, 20.0, None, None, None, None]


def test_decisions_that_change_something_are_marks(store: Store):
    for at_s, action in ((-1.0, "grow"), (3.0, "grow"), (13.0, "hold"), (33.0, "rollback"), (60.0, "grow")):
        store.decision(at_s, action, None, None)
    marks = shown(store)["marks"]
    assert [(mark["at_s"] - BEGAN_S, mark["action"]) for mark in marks] == [(3.0, "grow"), (33.0, "rollback")]
    assert marks[0]["reason"] == "because"


def test_a_decision_that_is_stored_again_counts_once(store: Store):
    for at_s, reason in ((3.0, "slow"), (13.0, "slow"), (23.0, "slower"), (33.0, "slow")):
        store.decision(at_s, "grow", None, None, reason)
    assert [mark["at_s"] - BEGAN_S for mark in shown(store)["marks"]] == [3.0, 23.0, 33.0]


def test_a_store_without_anything_gives_gaps_alone(store: Store):
    found = shown(store)
    assert found["delay"] == [None] * 6
    assert found["marks"] == []


@pytest.mark.parametrize("last_s", RANGES_S)
def test_buckets_end_with_the_present_and_are_few(last_s: float):
    grid = Grid.until(BEGAN_S + 3.0, last_s)
    assert grid.count <= POINTS
    assert grid.bucket_s >= LEAST_BUCKET_S
    assert grid.until_s - grid.bucket_s <= BEGAN_S + 3.0 < grid.until_s
    assert grid.until_s - grid.since_s == pytest.approx(last_s)


def test_names_are_quoted():
    assert quoted("a'b") == "'a''b'"
