"""Schedulers of published works on simulated fleets: tables for docs/benchmarks.md.

python -m tools.bench.fleet [--seeds 5] [--applications 10000] [--only NAME,...]

Names: allocation, sizes, preemption, shaping, calibration, placing, scale, deadlines, samples, staging, packing.
"""

from __future__ import annotations

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from perphd.batch.elastic import rebalanced
from perphd.sim.cluster.applications import Order, Rule, Served, run
from perphd.sim.cluster.packed import PackedPolicy
from perphd.sim.cluster.planned import PlannedOutcome, PlannedPolicy
from perphd.sim.cluster.workloads import google_2011
from tools.bench.batch_queue.spread import ratio_interval
from tools.bench.fleet.calibration import calibrated
from tools.bench.fleet.deadlines import SAMPLES, planned_runs, sampled
from tools.bench.fleet.packing import packed_runs
from tools.bench.fleet.placing import POLICIES, runs_of
from tools.bench.fleet.rules import malleable, rigid
from tools.bench.fleet.scale import FLEETS, scaled
from tools.bench.fleet.shaping import CASES, ShapedFigures, shaped
from tools.bench.fleet.staging import CONTESTANTS, staged_runs

HOSTS: Final = 100
RULES: Final[dict[str, Rule]] = {"rigid": rigid, "malleable": malleable, "flexible": rebalanced}
LOADS: Final = (0.8, 0.9, 1.0)
PREEMPTION_LOAD: Final = 0.9
CO_LOCATIONS: Final = 200
JOBS_PER_H: Final = 4000.0
KAPPAS: Final = (0.7,)
SHAPED: Final = 400
"""Applications of a run with shaping."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: turnaround of all, queueing of interactive ones, and what was allocated."""

    mean_s: float
    median_s: float
    queued_interactive_s: float
    queued_batch_s: float
    allocated_ratio: float
    waiting: float


@dataclass(frozen=True, slots=True)
class Case:
    """One run's settings."""

    rule: str
    order: Order
    load: float
    interactive: bool = False
    preemptive: bool = False


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="tools.bench.fleet", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--applications", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=["allocation", "sizes", "preemption"]
    )
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        tables = Tables(pool, options.seeds, options.applications)
        for name in options.only:
            getattr(tables, name)()


class Tables:
    """The tables of this bench."""

    def __init__(self, pool: ProcessPoolExecutor, seeds: int, applications: int) -> None:
        self._pool, self._seeds, self._count = pool, seeds, applications

    def allocation(self) -> None:
        """Rigid, malleable and flexible allocation of batch work."""
        print(
            "| load | order | rule | mean turnaround, s | median, s | of rigid's median | allocated | waiting |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for load in LOADS:
            for order in (Order.FIFO, Order.SJF):
                found = {name: self._figures(Case(name, order, load)) for name in RULES}
                for name, runs in found.items():
                    ratios = [
                        one.median_s / base.median_s for one, base in zip(runs, found["rigid"], strict=True)
                    ]
                    print(
                        f"| {load:.1f} | {order.value} | {name} | {_spread([one.mean_s for one in runs])} | "
                        f"{_spread([one.median_s for one in runs])} | {_spread(ratios)} | "
                        f"{statistics.mean(one.allocated_ratio for one in runs):.0%} | "
                        f"{statistics.mean(one.waiting for one in runs):.0f} |",
                        flush=True,
                    )

    def sizes(self) -> None:
        """One, two and three dimensions of size."""
        print("| order | rule | mean turnaround, s | median, s |\n| --- | --- | --- | --- |")
        for name in ("rigid", "flexible"):
            for order in (Order.SJF, Order.SJF_2D, Order.SJF_3D, Order.HRRN):
                runs = self._figures(Case(name, order, PREEMPTION_LOAD))
                print(
                    f"| {order.value} | {name} | {_spread([one.mean_s for one in runs])} | "
                    f"{_spread([one.median_s for one in runs])} |",
                    flush=True,
                )

    def preemption(self) -> None:
        """Interactive applications beside batch, with and without preemption of elastic components."""
        print(
            "| order | preemptive | interactive queued (median), s | batch queued (median), s | mean turnaround, s |"
        )
        print("| --- | --- | --- | --- | --- |")
        for order in (Order.FIFO, Order.SRPT):
            for preemptive in (False, True):
                if preemptive and order is Order.FIFO:
                    continue
                runs = self._figures(Case("flexible", order, PREEMPTION_LOAD, True, preemptive))
                print(
                    f"| {order.value} | {'yes' if preemptive else 'no'} | "
                    f"{_spread([one.queued_interactive_s for one in runs])} | "
                    f"{_spread([one.queued_batch_s for one in runs])} | {_spread([one.mean_s for one in runs])} |",
                    flush=True,
                )

    def shaping(self) -> None:
        """Sizes that follow forecasts, in the loop of a scheduler."""
        print("| mode | limit | forecaster | K1 | K2 | turnaround, s | ratio | slack | crashed | ended |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        base: list[ShapedFigures] = []
        for case in CASES:
            runs = [
                each.result()
                for each in [self._pool.submit(shaped, case, seed, SHAPED) for seed in range(self._seeds)]
            ]
            base = base or runs
            ratios = [one.mean_s / each.mean_s for one, each in zip(base, runs, strict=True)]
            print(
                f"| {case.mode.value} | {case.limit.value} | {case.forecaster} | {case.k1:.0%} | {case.k2:.0f} | "
                f"{_spread([one.mean_s for one in runs])} | {_spread(ratios)} | "
                f"{statistics.mean(one.slack_ratio for one in runs):.0%} | "
                f"{statistics.mean(one.crashed_ratio for one in runs):.1%} | "
                f"{statistics.mean(one.preempted for one in runs):.0f} |",
                flush=True,
            )

    def calibration(self) -> None:
        """The fleet's node model beside the detailed node, on 200 random co-locations."""
        print("| seed | workloads | rank correlation | median error | 90th percentile |")
        print("| --- | --- | --- | --- | --- |")
        for seed in range(self._seeds):
            found = calibrated(CO_LOCATIONS, seed)
            print(
                f"| {seed} | {len(found.kind)} | {found.rank_correlation:.3f} | {found.median_error:.2%} | "
                f"{found.p90_error:.1%} |",
                flush=True,
            )

    def placing(self) -> None:
        """Placement policies on one workload each seed, beside Alibaba's alignment."""
        seeds = [each.result() for each in [self._pool.submit(runs_of, seed) for seed in range(self._seeds)]]
        print("| policy | CPUs in use | violations | not degraded | batch, CPU h | batch waits, s | late |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for place, policy in enumerate(POLICIES):
            runs = [each[place] for each in seeds]
            print(
                f"| {policy} | {_spread([one.fleet_ratio for one in runs])} | "
                f"{statistics.mean(one.violations for one in runs):.1%} | "
                f"{statistics.mean(one.undegraded for one in runs):.1%} | "
                f"{_spread([one.work_cpu_h for one in runs])} | {_spread([one.waited_s for one in runs])} | "
                f"{statistics.mean(one.missed for one in runs):.1%} |",
                flush=True,
            )

    def scale(self) -> None:
        """Time and memory of the simulator; every fleet in a process of its own."""
        print("| nodes | pods | simulated, h | CPU time, s | peak, MiB | decisions |")
        print("| --- | --- | --- | --- | --- | --- |")
        for nodes, hours, cores in FLEETS:
            with ProcessPoolExecutor(1) as pool:
                found = pool.submit(scaled, nodes, hours, JOBS_PER_H, "optum", cores).result()
            print(
                f"| {found.nodes} | {found.pods} | {hours:g} | {found.made_cpu_s + found.cpu_s:.1f} | "
                f"{found.peak_mib:.0f} | {found.decisions} |",
                flush=True,
            )

    def deadlines(self) -> None:
        """3Sigma, its ablations, point estimates and priority on gangs with deadlines."""
        seeds = [each.result() for each in [self._pool.submit(planned_runs, n) for n in range(self._seeds)]]
        _missed([policy.value for policy in PlannedPolicy], seeds)

    def samples(self) -> None:
        """3Sigma with histories of 5 to 50 jobs of each kind, beside perfect estimates."""
        seeds = [each.result() for each in [self._pool.submit(sampled, n) for n in range(self._seeds)]]
        _missed(["point estimates, perfect", *(f"{n} jobs of each kind" for n in SAMPLES)], seeds)

    def staging(self) -> None:
        """Prophet beside CS, DRF and Tetris; ratios are to CS on the same seed."""
        print(
            "| contention | scheduler | makespan, s | of CS | median execution of CS's | median completion of CS's "
            "| asked too much |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for kappa in KAPPAS:
            seeds = [
                each.result()
                for each in [self._pool.submit(staged_runs, n, kappa) for n in range(self._seeds)]
            ]
            base = [runs[0] for runs in seeds]
            for place, name in enumerate(CONTESTANTS):
                runs = [each[place] for each in seeds]
                pairs = list(zip(runs, base, strict=True))
                print(
                    f"| {kappa:g} | {name} | {_spread([one.makespan_s for one in runs])} | "
                    f"{_spread([one.makespan_s / of.makespan_s for one, of in pairs])} | "
                    f"{_spread([one.execution_s / of.execution_s for one, of in pairs])} | "
                    f"{_spread([one.completion_s / of.completion_s for one, of in pairs])} | "
                    f"{statistics.mean(one.over_ratio for one in runs):.0%} |",
                    flush=True,
                )

    def packing(self) -> None:
        """DistSched, its ablations and what it is compared with."""
        seeds = [each.result() for each in [self._pool.submit(packed_runs, n) for n in range(self._seeds)]]
        print(
            "| policy | deadlines | missed | of Dist's | in time, core-h | best effort, core-h | latency, s | evicted "
            "| preempted | throttled |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        base = [float(runs[0].missed) for runs in seeds]
        for place, policy in enumerate(PackedPolicy):
            runs = [each[place] for each in seeds]
            missed = [float(one.missed) for one in runs]
            deadlines = [float(one.deadlines) for one in runs]
            print(
                f"| {policy.value} | {sum(deadlines):.0f} | {_part(missed, deadlines, '.1%')} | "
                f"{_part(missed, base, '.2f')} | {_spread([one.deadline_core_h for one in runs])} | "
                f"{_spread([one.best_effort_core_h for one in runs])} | "
                f"{_spread([one.latency_s for one in runs])} | {sum(one.evictions for one in runs)} | "
                f"{sum(one.preemptions for one in runs)} | {sum(one.throttled for one in runs)} |",
                flush=True,
            )

    def _figures(self, case: Case) -> list[Figures]:
        return [
            each.result()
            for each in [self._pool.submit(figures, case, seed, self._count) for seed in range(self._seeds)]
        ]


def figures(case: Case, seed: int, count: int) -> Figures:
    """One run and its figures."""
    applications, capacity = google_2011(seed, count, HOSTS, case.load, case.interactive)
    return _of(run(applications, capacity, RULES[case.rule], case.order, case.preemptive))


def _of(served: Served) -> Figures:
    turnaround = [each.turnaround_s for each in served.completions]
    interactive = [each.queued_s for each in served.completions if each.application.interactive]
    batch = [each.queued_s for each in served.completions if not each.application.interactive]
    return Figures(
        statistics.mean(turnaround),
        statistics.median(turnaround),
        statistics.median(interactive) if interactive else 0.0,
        statistics.median(batch),
        served.allocated_ratio,
        served.waiting,
    )


def _missed(names: list[str], seeds: list[list[PlannedOutcome]]) -> None:
    """A row for each name; ``seeds`` have a run for each of them. Ratios are to the first row."""
    print(
        "| policy | deadlines | missed | of the first row's | in time, node-h | best effort, node-h | latency, s | "
        "preempted |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    base = [float(runs[0].missed) for runs in seeds]
    for place, name in enumerate(names):
        runs = [each[place] for each in seeds]
        missed = [float(one.missed) for one in runs]
        deadlines = [float(one.deadlines) for one in runs]
        print(
            f"| {name} | {sum(deadlines):.0f} | {_part(missed, deadlines, '.1%')} | {_part(missed, base, '.2f')} | "
            f"{_spread([one.deadline_node_h for one in runs])} | {_spread([one.best_effort_node_h for one in runs])} | "
            f"{_spread([one.latency_s for one in runs])} | {sum(one.preemptions for one in runs)} |",
            flush=True,
        )


def _part(happened: list[float], of: list[float], shape: str) -> str:
    """The ratio of two sums over the seeds, and where it lies."""
    low, high = ratio_interval(happened, of)
    return f"{sum(happened) / max(1.0, sum(of)):{shape}} ({low:{shape}} to {high:{shape}})"


def _spread(values: list[float]) -> str:
    """Mean and standard deviation over the seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3g} ± {deviation:.2g}"


if __name__ == "__main__":
    main()
