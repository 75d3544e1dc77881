"""Number of hosts saved for the same work on target: fleets with and without perphd at rising density.

python -m tools.bench.fleet.buyers --out out/bench/buyers [--seeds 10] [--processes 2]

Each seed draws one workload, which runs on fewer and fewer hosts: services with a diurnal load and batch that arrives
in bursts. Every number of hosts runs

    stock      placement by requests, no perphd
    agents     the same with perphd on every host
    extender   perphd on every host, placement by its extender (policy ``optum``, profiles of another day)

On fewer hosts, all requests are smaller by the same factor, so that a scheduler by requests sees the same fleet.

The criteria were fixed before the first run. A service is late if it misses the default target, relative to the same
host at the same load without batch. A number of hosts is *on target* if services are late in at most 1 % of the time
and batch does at least 95 % of the work that it does without perphd on the greatest number. With perphd,
``MISSED_RATIO`` of the time of services on hosts where it has to act counts as late as well; that is the share that its
controller misses on the detailed node. The numbers of hosts were chosen after a look at the first seeds.

Each seed and number of hosts has one file; existing files are not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from perphd.cluster.scheduling.placement import PlacementSettings
from perphd.domain.workload import Objective
from perphd.sim.cluster.fleet_results import FleetRun
from perphd.sim.cluster.fleet_settings import FleetSettings
from perphd.sim.cluster.fleet_workload import FleetShape, FleetWorkload, drawn
from perphd.sim.cluster.learning import Learned
from perphd.sim.cluster.node_agents import MISSED_RATIO, NodeAgents
from perphd.sim.cluster.simulator import FleetSimulator

HOSTS: Final = (24, 12, 10, 9, 8, 7, 6, 5)
"""Numbers of hosts; the workload is drawn for the first."""
SHAPE: Final = FleetShape(
    nodes=HOSTS[0], hours=1.0, service_requests=0.6, jobs_per_h=110, median_run_s=900.0, memory_per_core=1.2,
    cores_median=32.0,
)  # fmt: skip
ARMS: Final = ("stock", "agents", "extender")
CYCLE_S: Final = 180.0
WARM_S: Final = 600.0
ROUNDS: Final = 12
ON_TARGET: Final = 0.01
SAME_WORK: Final = 0.95
T_975: Final = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for a 95 % interval, by degrees of freedom."""


@dataclass(frozen=True, slots=True)
class BuyerFigures:
    """One run. ``late``: share of (service, time); ``held``: share of (service, time) that would be late without
    perphd, or shares a host with such a service. ``cpu_ratio``: of all hosts' CPUs in use.
    """

    late: float
    held: float
    work_cpu_h: float
    cpu_ratio: float
    evictions: int

    @property
    def missed(self) -> float:
        """Share of (service, time) that is late, including the share that the controller misses while it acts."""
        return min(1.0, self.late + MISSED_RATIO * max(self.held - self.late, 0.0))


def squeezed(workload: FleetWorkload, factor: float) -> FleetWorkload:
    """The same use with requests times ``factor``."""
    pods = [
        replace(
            pod, cores=pod.cores * factor, used_ratio=pod.used_ratio / factor,
            memory_bytes=pod.memory_bytes * factor, memory_ratio=pod.memory_ratio / factor,
        )
        for pod in workload.pods
    ]  # fmt: skip
    return replace(workload, pods=pods)


def figures(seed: int, hosts: int) -> dict[str, BuyerFigures]:
    """All three on one seed's workload."""
    factor = min(1.0, hosts / SHAPE.nodes)
    past, workload = (squeezed(drawn(SHAPE, seed, day=day), factor) for day in (0, 1))
    learned = _run(past, hosts, "balanced", active=True, learn=True).learned
    runs = {
        "stock": _run(workload, hosts, "balanced", active=False),
        "agents": _run(workload, hosts, "balanced", active=True),
        "extender": _run(workload, hosts, "optum", active=True, learned=learned),
    }
    return {arm: _figures(run, hosts) for arm, run in runs.items()}


def _run(
    workload: FleetWorkload, hosts: int, policy: str, *, active: bool, learn: bool = False,
    learned: Learned | None = None,
) -> FleetRun:  # fmt: skip
    settings = FleetSettings(
        PlacementSettings(policy), cycle_s=CYCLE_S, tick_s=CYCLE_S, learn=learn,
        agents=NodeAgents(Objective(), active=active), rounds=ROUNDS,
    )  # fmt: skip
    return FleetSimulator(workload, hosts, settings, learned).run(SHAPE.hours * 3600.0)


def _figures(run: FleetRun, hosts: int) -> BuyerFigures:
    ticks = [tick for tick in run.ticks if tick.at_s >= WARM_S]
    services = max(sum(tick.services for tick in ticks), 1)
    return BuyerFigures(
        sum(tick.late_services for tick in ticks) / services,
        sum(tick.held_services for tick in ticks) / services,
        float(run.work_done.sum() / 3600.0),
        statistics.fmean(tick.cpu_ratio * tick.nodes_in_use / hosts for tick in ticks),
        int(run.evictions.sum()),
    )


def smallest(runs: dict[int, dict[str, BuyerFigures]], arm: str, most: float = ON_TARGET) -> int | None:
    """The smallest number of hosts on target for which all greater numbers are on target as well; None: not even the
    greatest is.
    """
    work = runs[max(runs)]["stock"].work_cpu_h
    found = None
    for hosts in sorted(runs, reverse=True):
        here = runs[hosts][arm]
        if here.missed > most or here.work_cpu_h < SAME_WORK * work:
            break
        found = hosts
    return found


def interval(values: Sequence[float]) -> str:
    """Mean and its 95 % interval over the seeds."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return f"{mean:.3g}"
    half = T_975[min(n - 1, len(T_975) - 1)] * statistics.stdev(values) / math.sqrt(n)
    return f"{mean:.3g} ({mean - half:.3g} to {mean + half:.3g})"


def markdown(seeds: Sequence[dict[int, dict[str, BuyerFigures]]]) -> list[str]:
    """The tables."""
    lines = [
        "| hosts | CPUs in use, stock | late, stock | with perphd | with its extender | batch work of stock on "
        f"{HOSTS[0]} hosts: stock | with perphd | with its extender |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for hosts in HOSTS:
        late = [interval([100.0 * each[hosts][arm].missed for each in seeds]) for arm in ARMS]
        work = [
            interval([each[hosts][arm].work_cpu_h / each[HOSTS[0]]["stock"].work_cpu_h for each in seeds])
            for arm in ARMS
        ]
        used = statistics.fmean(each[hosts]["stock"].cpu_ratio for each in seeds)
        lines.append(
            f"| {hosts} | {used:.0%} | {' | '.join(f'{each} %' for each in late)} | {' | '.join(work)} |"
        )
    lines += ["", "| late at most | stock | with perphd | fewer | with its extender | fewer |",
              "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for most in (ON_TARGET, 5 * ON_TARGET):
        found = {arm: [smallest(each, arm, most) or HOSTS[0] for each in seeds] for arm in ARMS}
        cells = [interval([float(n) for n in found["stock"]])]
        for arm in ARMS[1:]:
            fewer = [100.0 * (1.0 - n / base) for n, base in zip(found[arm], found["stock"], strict=True)]
            cells += [interval([float(n) for n in found[arm]]), f"{interval(fewer)} %"]
        lines.append(f"| {most:.0%} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Run missing files, then print."""
    parser = argparse.ArgumentParser(prog="tools.bench.fleet.buyers", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bench/buyers"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    paths = {
        (seed, hosts): options.out / f"{seed}-{hosts}.json"
        for seed in range(options.seeds)
        for hosts in HOSTS
    }
    with ProcessPoolExecutor(options.processes) as pool:
        asked = {each: pool.submit(figures, *each) for each, path in paths.items() if not path.exists()}
        for each, future in asked.items():
            found = {arm: asdict(value) for arm, value in future.result().items()}
            paths[each].write_text(json.dumps(found))
    read = {each: json.loads(path.read_text()) for each, path in paths.items()}
    seeds = [
        {n: {arm: BuyerFigures(**value) for arm, value in read[seed, n].items()} for n in HOSTS}
        for seed in range(options.seeds)
    ]
    print("\n".join(markdown(seeds)))


if __name__ == "__main__":
    main()
