"""Drives the simulated fleet by an imported trace.

    python -m tools.bench.fleet.traced PLACE --nodes 40 [--policy optum] [--hours 6] [--results DIR] [--checkpoint FILE]

Requests, mean use, times of submission, start and end come from the trace. Where it lists tasks and their instances,
the instances are simulated. A workload without a request gets its greatest use as the request; a workload without an
end runs to the end of the simulation. No trace states how an application uses caches and memory channels, so that use
is drawn from its name. Amounts in other units than CPUs and bytes are scaled by ``--cpus`` and ``--memory-gib``, the
size of the largest machine.
"""

from __future__ import annotations

import argparse
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from perphd.cluster.scheduling.placement import POLICIES, PlacementSettings
from perphd.cluster.scheduling.profile import PodKind
from perphd.dataset.stores import open_store
from perphd.domain.reading import Reading, available
from perphd.domain.trace import TraceRecord, TraceWorkload, WorkloadUse
from perphd.domain.workload import Kind
from perphd.sim.cluster.checkpoint import CheckpointRefused, Checkpoints, run_of
from perphd.sim.cluster.fleet_events import digest
from perphd.sim.cluster.fleet_results import FleetTick
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import FLEET_NODE, FleetPod, FleetWorkload, batch_type, service_type
from perphd.sim.cluster.simulator import FleetSimulator
from perphd.sim.node.machine import Machine
from perphd.sim.node.workload import NodeWorkload
from tools.bench.fleet.results import write_results
from tools.traces.imported import facts_of, read_records
from tools.traces.sources import TraceError

LEAST_CORES: Final = 0.05
LEAST_BYTES: Final = float(1 << 20)
LEAST_RUN_S: Final = 1.0


@dataclass(slots=True)
class _Life:
    app: str = ""
    kind: Kind | None = None
    submitted_s: float = math.nan
    start_s: float = math.nan
    end_s: float = math.nan
    cores: float = math.nan
    memory: float = math.nan
    instances: float = math.nan
    used: list[float] = field(default_factory=list)
    held: list[float] = field(default_factory=list)
    used_of_request: list[float] = field(default_factory=list)
    held_of_request: list[float] = field(default_factory=list)
    seen_s: list[float] = field(default_factory=list)


def workload_of(
    records: Iterable[TraceRecord],
    cpu_scale: float = 1.0,
    memory_scale: float = 1.0,
    machine: Machine = FLEET_NODE,
) -> FleetWorkload:
    """The workloads of a trace as pods; times start at the first submission.

    Raises:
        TraceError: the trace has no workload with a known use of CPU.
    """
    lives: dict[str, _Life] = {}
    for record in records:
        if isinstance(record, TraceWorkload):
            _fact(lives.setdefault(record.workload, _Life()), record)
        elif isinstance(record, WorkloadUse):
            life = lives.setdefault(record.workload, _Life())
            life.app = life.app or record.app
            life.seen_s.append(record.at_s)
            _append(life.used, record.cpu)
            _append(life.held, record.memory)
            _append(life.used_of_request, record.cpu_of_request)
            _append(life.held_of_request, record.memory_of_request)
    _give_to_instances(lives)
    found = {name: life for name, life in lives.items() if life.used or life.cores > 0}
    if not found:
        raise TraceError("no workload of this trace has a request or use of CPU; nothing can be simulated")
    types: dict[str, int] = {}
    made: list[NodeWorkload] = []
    pods = []
    for name, life in found.items():
        pod = _pod(name, life, cpu_scale, memory_scale)
        if pod.application not in types:
            types[pod.application] = len(made)
            rng = np.random.default_rng(zlib.crc32(pod.application.encode()))
            make = service_type if pod.kind is PodKind.SERVICE else batch_type
            made.append(make(rng, pod.application, machine))
        pods.append((pod, types[pod.application]))
    first = min(pod.submitted_s for pod, _ in pods)
    placed = sorted(
        (_shifted(pod, number, first) for pod, number in pods), key=lambda each: (each.submitted_s, each.name)
    )
    return FleetWorkload(tuple(made), placed, 0)


def _give_to_instances(lives: dict[str, _Life]) -> None:
    """Replace tasks by their instances, if these are listed as well; each has the task's request per instance."""
    tasks = {name: life for name, life in lives.items() if life.app == name and life.instances > 0}
    listed = set()
    for name, life in lives.items():
        task = tasks.get(life.app)
        if task is None or name == life.app:
            continue
        listed.add(life.app)
        for fact in ("cores", "memory", "submitted_s"):
            if not math.isfinite(getattr(life, fact)):
                setattr(life, fact, getattr(task, fact))
    for name in listed:
        del lives[name]


def _append(values: list[float], reading: Reading) -> None:
    if available(reading):
        values.append(float(reading))


def _fact(life: _Life, record: TraceWorkload) -> None:
    life.app, life.kind = record.app or life.app, record.kind or life.kind
    for name, source in (
        ("submitted_s", record.submitted_s), ("start_s", record.start_s), ("end_s", record.end_s),
        ("cores", record.cpu_request), ("memory", record.memory_request), ("instances", record.instances),
    ):  # fmt: skip
        if available(source):
            setattr(life, name, float(source))
    _append(life.used, record.cpu_mean)
    _append(life.held, record.memory_mean)


def _pod(name: str, life: _Life, cpu_scale: float, memory_scale: float) -> FleetPod:
    used = _use(life.used, life.used_of_request, life.cores, 0.3)
    held = _use(life.held, life.held_of_request, life.memory, 1.0)
    cores = life.cores if life.cores > 0 else max(life.used)
    memory = life.memory if life.memory > 0 else max(life.held, default=0.0)
    held = held if math.isfinite(held) else memory
    cores, memory = max(cores * cpu_scale, LEAST_CORES), max(memory * memory_scale, LEAST_BYTES)
    times = [at_s for at_s in (life.submitted_s, life.start_s) if math.isfinite(at_s)] + life.seen_s[:1]
    start_s = life.start_s if math.isfinite(life.start_s) else times[0] if times else 0.0
    used_cores = max(used * cpu_scale, 1e-3)
    batch = life.kind is Kind.BATCH
    ends = batch and math.isfinite(life.end_s)
    work = max(life.end_s - start_s, LEAST_RUN_S) * used_cores if ends else math.inf
    return FleetPod(
        name, life.app or name, PodKind.BATCH if batch else PodKind.SERVICE, 0, cores, memory, used_cores / cores,
        min(held * memory_scale / memory, 1.5), min(times, default=0.0), work,
    )  # fmt: skip


def _use(values: list[float], of_request: list[float], request: float, default: float) -> float:
    """Mean use, from samples in units or in shares of the request; ``default`` of the request without either."""
    if values:
        return float(np.mean(values))
    return request * (float(np.mean(of_request)) if of_request else default)


def _shifted(pod: FleetPod, number: int, first_s: float) -> FleetPod:
    values = {name: getattr(pod, name) for name in pod.__slots__}
    return FleetPod(**{**values, "type": number, "submitted_s": pod.submitted_s - first_s})


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate and print figures."""
    parser = argparse.ArgumentParser(prog="tools.bench.fleet.traced", description=__doc__)
    parser.add_argument("place")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--policy", choices=sorted(POLICIES), default="optum")
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--cpus", type=float, default=float(FLEET_NODE.cpus))
    parser.add_argument("--memory-gib", type=float, default=FLEET_NODE.memory_bytes / (1 << 30))
    parser.add_argument("--results", type=Path, help="a new folder for Parquet files")
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE",
        help="keep the state here, and go on from it after an interruption; removed at the end",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint-every", type=float, default=1.0, metavar="H",
        help="simulated hours between two checkpoints [1]",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    place = open_store(options.place)
    try:
        facts = facts_of(place)
        cpu_scale = 1.0 if facts.get("cpu_unit") == "CPUs" else options.cpus
        memory_scale = 1.0 if facts.get("memory_unit") == "bytes" else options.memory_gib * (1 << 30)
        workload = workload_of(read_records(place, TraceWorkload, WorkloadUse), cpu_scale, memory_scale)
    except TraceError as exc:
        parser.exit(1, f"{exc}\n")
    settings = FleetSettings(PlacementSettings(options.policy))
    if options.checkpoint is None:
        run = FleetSimulator(workload, options.nodes, settings).run(options.hours * 3600.0, _told)
    else:
        what = run_of((workload.types, *workload.pods, workload.seed, options.nodes, settings))
        kept = Checkpoints(options.checkpoint, what, options.checkpoint_every * 3600.0)
        try:
            simulator = kept.load()
        except CheckpointRefused as exc:
            parser.exit(1, f"{exc}\nremove it to simulate from the start\n")
        if simulator is None:
            simulator = FleetSimulator(workload, options.nodes, settings)
        else:
            print(f"going on at {simulator.now_s / 3600:.2f} h", flush=True)
        run = simulator.run(options.hours * 3600.0, _told, kept.after_cycle)
    if options.results is not None:
        write_results(options.results, workload, run)
    if options.checkpoint is not None:
        options.checkpoint.unlink(missing_ok=True)
    last = asdict(run.ticks[-1])
    print(
        json.dumps(
            {**last, "pods": len(workload.pods), "decisions": run.decisions, "log": digest(run.events)}
        )
    )


def _told(tick: FleetTick) -> None:
    print(
        f"{tick.at_s / 3600:.2f} h: {tick.running} run, {tick.waiting} wait, CPUs {tick.cpu_ratio:.0%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
