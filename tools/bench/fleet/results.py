"""A simulated run as Parquet files: ``pods``, ``ticks`` and ``events``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from perphd.dataset.stores import pyarrow
from perphd.sim.cluster.fleet_workload import FleetWorkload
from perphd.sim.cluster.simulator import FleetRun


def write_results(folder: Path, workload: FleetWorkload, run: FleetRun) -> None:
    """Write the files. The folder must be new.

    Raises:
        FileExistsError: it exists.
    """
    folder.mkdir(parents=True)
    pods: dict[str, Any] = {
        name: [getattr(pod, name) for pod in workload.pods]
        for name in ("name", "application", "cores", "memory_bytes", "submitted_s")
    }
    pods["kind"] = [pod.kind.value for pod in workload.pods]
    for name in ("started_s", "ended_s", "worst_stall", "work_done", "slow_share", "evictions"):
        pods[name] = getattr(run, name)
    _write(folder / "pods.parquet", pods)
    _write(folder / "ticks.parquet", _columns([asdict(tick) for tick in run.ticks]))
    events = [
        {"at_s": event.at_s, "kind": event.kind.value, "pod": event.pod, "node": event.node}
        for event in run.events
    ]
    _write(folder / "events.parquet", _columns(events))


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _write(path: Path, columns: dict[str, Any]) -> None:
    pyarrow("parquet", "Parquet").write_table(pyarrow("", "Parquet").table(columns), path)
