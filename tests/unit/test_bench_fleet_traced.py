"""A trace drives the simulated fleet, and a run is written as Parquet."""

from __future__ import annotations

from pathlib import Path

import pytest

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.cluster.scheduling.profile import PodKind
from perphd.domain.trace import TraceRecord, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind
from perphd.sim.cluster.fleet_events import replayed
from perphd.sim.cluster.simulator import FleetSettings, FleetSimulator
from tools.bench.fleet.results import write_results
from tools.bench.fleet.traced import workload_of
from tools.traces.sources import TraceError

GIB = float(1 << 30)


def _records() -> list[TraceRecord]:
    records: list[TraceRecord] = [
        TraceWorkload("db", "db", Kind.LRA, submitted_s=1000.0, cpu_request=8.0, memory_request=16 * GIB),
        WorkloadUse(1030.0, "db", cpu=2.0, memory=8 * GIB),
        WorkloadUse(1060.0, "db", cpu=4.0, memory=8 * GIB),
    ]
    for n in range(6):
        start_s = 1000.0 + 60 * n
        records.append(
            TraceWorkload(
                f"job{n}", "etl", Kind.BATCH, submitted_s=start_s, start_s=start_s + 5, end_s=start_s + 305,
                cpu_request=4.0, memory_request=4 * GIB, cpu_mean=2.0, memory_mean=3 * GIB,
            )
        )  # fmt: skip
    return records


def test_requests_use_and_times_are_the_trace_s():
    workload = workload_of(_records())
    service, job = workload.pods[0], workload.pods[1]
    assert [pod.submitted_s for pod in workload.pods] == [0, 0, 60, 120, 180, 240, 300]
    assert (service.kind, service.cores) == (PodKind.SERVICE, 8.0)
    assert service.used_ratio == pytest.approx(3 / 8)
    assert service.memory_ratio == pytest.approx(0.5)
    assert (job.kind, job.application) == (PodKind.BATCH, "etl")
    assert job.work_cpu_s == pytest.approx(600.0)
    assert len(workload.types) == 2
    assert workload_of(_records()).types == workload.types  # drawn from the names


def test_shares_of_the_largest_machine_are_scaled():
    record = TraceWorkload("a", "a", Kind.LRA, submitted_s=0.0, cpu_request=0.25, memory_request=0.5)
    pod = workload_of([record], 128.0, 512 * GIB).pods[0]
    assert (pod.cores, pod.memory_bytes) == (32.0, 256 * GIB)


def test_a_trace_without_cpu_is_refused():
    with pytest.raises(TraceError, match="nothing can be simulated"):
        workload_of([TraceWorkload("a", "a", Kind.LRA)])


def test_a_traced_run_is_written_and_replays(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    workload = workload_of(_records())
    run = FleetSimulator(workload, 2, FleetSettings(PlacementSettings("balanced"))).run(1200.0)
    write_results(tmp_path / "run", workload, run)
    pods = parquet.read_table(tmp_path / "run" / "pods.parquet").to_pydict()
    assert pods["name"][:2] == ["db", "job0"]
    assert [round(value) for value in pods["work_done"][1:]] == [600] * 6
    assert len(replayed(run.events)) == 1  # the service
    assert parquet.read_table(tmp_path / "run" / "events.parquet").num_rows == len(run.events)
    with pytest.raises(FileExistsError):
        write_results(tmp_path / "run", workload, run)
