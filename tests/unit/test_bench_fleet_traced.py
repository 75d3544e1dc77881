"""A trace drives the simulated fleet, and a run is written as Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.cluster.scheduling.profile import PodKind
from perphd.dataset.stores import open_store, pyarrow
from perphd.domain.trace import TraceRecord, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind
from perphd.sim.cluster.fleet_events import replayed
from perphd.sim.cluster.fleet_results import FleetTick
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import BATCH_PHASES
from perphd.sim.cluster.simulator import FleetSimulator
from tools.bench.fleet import traced
from tools.bench.fleet.results import write_results
from tools.bench.fleet.traced import main as traced_main
from tools.bench.fleet.traced import workload_of
from tools.traces.__main__ import main as traces_main
from tools.traces.imported import read_records
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
    pytest.importorskip("matplotlib")
    workload = workload_of(_records())
    run = FleetSimulator(workload, 2, FleetSettings(PlacementSettings("balanced"))).run(1200.0)
    write_results(tmp_path / "run", workload, run)
    pods = parquet.read_table(tmp_path / "run" / "pods.parquet").to_pydict()
    assert pods["name"][:2] == ["db", "job0"]
    assert [round(value) for value in pods["work_done"][1:]] == [600] * 6
    assert len(replayed(run.events)) == 1  # the service
    assert parquet.read_table(tmp_path / "run" / "events.parquet").num_rows == len(run.events)
    assert (tmp_path / "run" / "fleet.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(FileExistsError):
        write_results(tmp_path / "run", workload, run)


def _published(folder: Path) -> Path:
    """A trace in the tables of Alibaba's cluster-trace-v2018: 4 machines, 12 containers, 40 batch instances."""
    machines = [f"m_{n},0,{n % 2},{n},96,100,USING" for n in range(4)]
    metas, uses, tasks, instances = [], [], [], []
    for n in range(12):
        metas.append(f"c_{n},m_{n % 4},0,app_{n % 3},started,800,800,3.0")
        uses += [f"c_{n},m_{n % 4},{at_s},{20 + n},50,1.2,,0.5,,,1" for at_s in range(0, 3600, 300)]
    for n in range(40):
        start_s, length_s = 60 + 40 * n, 120 + 15 * (n % 5)
        task = f"task_{n}"
        tasks.append(f"{task},1,j_{n % 8},1,Terminated,{start_s},{start_s + length_s},200,0.5")
        instances.append(
            f"ins_{n},{task},j_{n % 8},1,Terminated,{start_s},{start_s + length_s},m_{n % 4},1,1,100,150,0.3,0.4"
        )
    for name, rows in (
        ("machine_meta", machines), ("container_meta", metas), ("container_usage", uses), ("batch_task", tasks),
        ("batch_instance", instances),
    ):  # fmt: skip
        (folder / f"{name}.csv").write_text("".join(f"{row}\n" for row in rows))
    return folder


def test_a_trace_in_a_public_format_runs_through_the_fleet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source, place, results = tmp_path / "downloads", tmp_path / "imported", tmp_path / "results"
    source.mkdir()
    assert traces_main(["import", "--format", "alibaba-v2018", str(_published(source)), str(place)]) == 0
    capsys.readouterr()
    traced_main([str(place), "--nodes", "4", "--hours", "1", "--results", str(results)])
    *ticks, last = capsys.readouterr().out.splitlines()
    assert len(ticks) == 13
    told = json.loads(last)
    assert (told["pods"], told["services"], told["waiting"]) == (52, 12, 0)
    pods = pyarrow("parquet", "Parquet").read_table(results / "pods.parquet").to_pylist()
    batch = {pod["name"]: pod for pod in pods if pod["kind"] == "batch"}
    assert len(batch) == 40
    for pod in batch.values():  # one core's work of two to three minutes; phases ask for 0.3 to 1.6 cores
        number = int(pod["name"].rpartition("_")[2])
        took_s = pod["ended_s"] - pod["started_s"]
        assert 0.9 / BATCH_PHASES[1] <= took_s / (120 + 15 * (number % 5)) <= 1.2 / BATCH_PHASES[0]
        assert pod["started_s"] - pod["submitted_s"] <= 60.0
        assert pod["cores"] == 2.0
    services = workload_of(read_records(open_store(str(place)), TraceWorkload, WorkloadUse)).pods
    assert {pod.name: pod.used_ratio for pod in services if pod.kind is PodKind.SERVICE} == {
        f"c_{n}": pytest.approx((20 + n) / 100) for n in range(12)
    }


def test_an_interrupted_simulation_of_a_trace_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("matplotlib")
    source, place, kept = tmp_path / "downloads", tmp_path / "imported", tmp_path / "kept"
    source.mkdir()
    assert traces_main(["import", "--format", "alibaba-v2018", str(_published(source)), str(place)]) == 0
    asked = [str(place), "--nodes", "3", "--policy", "balanced", "--hours", "1"]
    traced_main([*asked, "--results", str(tmp_path / "whole")])
    whole = json.loads(capsys.readouterr().out.splitlines()[-1])
    asked += ["--checkpoint", str(kept), "--checkpoint-every", "0.25"]

    def interrupted(tick: FleetTick) -> None:
        if tick.at_s >= 1800.0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(traced, "_told", interrupted)
        with pytest.raises(KeyboardInterrupt):
            traced_main([*asked, "--results", str(tmp_path / "resumed")])
    assert kept.exists()
    with pytest.raises(SystemExit):
        traced_main(["--nodes", "4", *asked[:1], *asked[3:]])
    assert "belongs to another run" in capsys.readouterr().err
    traced_main([*asked, "--results", str(tmp_path / "resumed")])
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "going on at 0.27 h"
    assert json.loads(told[-1]) == whole
    assert not kept.exists()
    for name in ("pods", "ticks", "events"):
        one, other = ((tmp_path / run / f"{name}.parquet").read_bytes() for run in ("whole", "resumed"))
        assert one == other
