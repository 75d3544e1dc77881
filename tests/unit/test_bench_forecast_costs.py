"""The benches of what forecasts cost: what they measure is there, and what does not depend on the machine holds."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from perphd.forecast.history.features import JobDescription, feature_values
from perphd.forecast.history.store import JobHistory
from tools.bench.forecasts import costs, history


def test_every_job_that_is_asked_about_has_full_records_for_all_its_feature_values(tmp_path: Path) -> None:
    path = tmp_path / "jobs.sqlite"
    with JobHistory(path) as found:
        jobs = history.filled(found, 2000, np.random.default_rng(1))
        assert len(found) == 2000
    with sqlite3.connect(path) as database:
        known = {row[0] for row in database.execute("SELECT feature FROM records")}
    assert jobs
    for facts in jobs:
        assert len(feature_values(facts)) == 28
        assert known.issuperset(feature_values(facts))


def test_a_prediction_searches_the_index_and_takes_well_under_its_budget() -> None:
    """CPU time, which does not count what else the machine does; the bench has 100,000 values and wall time."""
    found = history.measure(values=3000, predictions=300, seed=3)
    assert found.prediction.cpu_p50 < history.BUDGET_MS / 2
    assert found.row_bytes[1000] < 1.1 * found.row_bytes[100], "constant memory for each value"
    text = "\n".join(history.lines(found))
    assert "3000 feature values" in text


def test_time_of_a_prediction_does_not_grow_with_the_history(tmp_path: Path) -> None:
    with JobHistory(tmp_path / "jobs.sqlite") as found:
        found.complete(JobDescription(user="ada"), {history.RUN: 1.0}, 0.0)
    with sqlite3.connect(tmp_path / "jobs.sqlite") as database:
        plan = database.execute(
            "EXPLAIN QUERY PLAN SELECT samples FROM records WHERE quantity = ? AND feature IN (?, ?)",
            ("run_time_s", "user=ada", "name=x"),
        ).fetchall()
    assert all("SEARCH" in row[3] for row in plan if "records" in row[3]), plan


def test_the_workers_cycles_forecast_every_workload() -> None:
    found = costs.worker_cost(workloads=3, cycles=4)
    assert found.cycles == 4
    assert 0 < found.mean_ms < 1e3 * found.first_s
    assert found.core_pct == pytest.approx(100 * found.mean_ms / 60e3)
    assert "3 workloads" in "\n".join(costs.lines(found, None, []))


@pytest.mark.requires_root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes control groups")
def test_what_forecasts_and_sizing_take_of_a_tick_is_measured_by_part() -> None:
    found = costs.tick_cost(workloads=6, ticks=130)
    assert found.parts.keys() == {"shaper", "memory fits", "worker told", "runs followed"}
    assert all(most > 0 for most in found.parts.values())
    assert found.p50 <= found.p99 <= found.most <= sum(found.parts.values())
