"""A simulated run as Parquet files, ``pods``, ``ticks`` and ``events``, and as a plot, ``fleet.png``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from perphd.dataset.stores import pyarrow
from perphd.sim.cluster.fleet_results import FleetRun, FleetTick
from perphd.sim.cluster.fleet_workload import FleetWorkload

_LABELS: Final[Mapping[str, str]] = {
    "cpu_ratio": "CPUs used",
    "memory_ratio": "memory used",
    "requested_ratio": "CPUs requested",
    "running": "running",
    "waiting": "waiting",
    "violations": "nodes whose CPUs are not enough",
    "late_services": "late services",
}


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
    _plot(folder / "fleet.png", run.ticks)


def _plot(path: Path, ticks: Sequence[FleetTick]) -> None:
    """Draw the fleet over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    hours = [tick.at_s / 3600.0 for tick in ticks]
    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for axis, title, names in (
        (axes[0], "share of the nodes in use", ("cpu_ratio", "memory_ratio", "requested_ratio")),
        (axes[1], "pods", ("running", "waiting")),
        (axes[2], "out of bounds", ("violations", "late_services")),
    ):
        for name in names:
            axis.plot(hours, [getattr(tick, name) for tick in ticks], label=_LABELS[name])
        axis.set(title=title, xlabel="hours", ylim=(0, None))
        axis.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _write(path: Path, columns: dict[str, Any]) -> None:
    pyarrow("parquet", "Parquet").write_table(pyarrow("", "Parquet").table(columns), path)
