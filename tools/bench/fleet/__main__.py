"""Schedulers of published works on simulated fleets: tables for docs/benchmarks.md.

python -m tools.bench.fleet [--seeds 5] [--applications 10000] [--only NAME,...] [--out FOLDER]

Names: allocation, sizes, preemption, shaping, calibration, placing, limits, scale, deadlines, samples, staging,
packing. FOLDER receives results, plots and a report (``tools.bench.fleet.runs``); an interrupted bench continues there.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from perphd.batch.elastic import rebalanced
from perphd.sim.cluster.applications import Order, Rule, Served, run
from perphd.sim.cluster.packed import PackedPolicy
from perphd.sim.cluster.planned import PlannedPolicy
from perphd.sim.cluster.workloads import google_2011
from tools.bench.batch_queue.spread import ratio_interval
from tools.bench.fleet.calibration import calibration_of
from tools.bench.fleet.deadlines import SAMPLES, planned_run, sampled_run
from tools.bench.fleet.packing import packed_run
from tools.bench.fleet.placing import LIMITED, POLICIES, PlacingFigures, limited_run, placed
from tools.bench.fleet.rules import malleable, rigid
from tools.bench.fleet.runs import BenchRuns, CaseRun
from tools.bench.fleet.scale import FLEETS, scaled
from tools.bench.fleet.shaping import CASES, shaped
from tools.bench.fleet.staging import CONTESTANTS, staged_run

HOSTS: Final = 100
RULES: Final[dict[str, Rule]] = {"rigid": rigid, "malleable": malleable, "flexible": rebalanced}
LOADS: Final = (0.8, 0.9, 1.0)
PREEMPTION_LOAD: Final = 0.9
CO_LOCATIONS: Final = 200
JOBS_PER_H: Final = 4000.0
KAPPAS: Final = (0.7,)
SHAPED: Final = 400
"""Applications of a run with shaping."""

_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: turnaround of all applications, queueing of interactive ones, and the allocated share."""

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
    parser.add_argument(
        "--out", type=Path, help="folder of the results; results that it has are not repeated"
    )
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        tables = Tables(BenchRuns(pool, options.out), options.seeds, options.applications)
        for name in options.only:
            getattr(tables, name)()


class Tables:
    """The tables of this bench."""

    def __init__(self, runs: BenchRuns, seeds: int, applications: int) -> None:
        self._runs, self._seeds, self._count = runs, seeds, applications
        self._say = runs.say

    def allocation(self) -> None:
        """Rigid, malleable and flexible allocation of batch work."""
        self._head(
            "load | order | rule | mean turnaround, s | median, s | of rigid's median | allocated | waiting"
        )
        cases = [
            Case(rule, order, load) for load in LOADS for order in (Order.FIFO, Order.SJF) for rule in RULES
        ]
        found = self._figures("allocation", cases)
        for case, runs in found.items():
            rigids = found[replace(case, rule="rigid")]
            ratios = [one.median_s / base.median_s for one, base in zip(runs, rigids, strict=True)]
            self._row(
                f"{case.load:.1f}", case.order.value, case.rule, _spread([one.mean_s for one in runs]),
                _spread([one.median_s for one in runs]), _spread(ratios),
                f"{statistics.mean(one.allocated_ratio for one in runs):.0%}",
                f"{statistics.mean(one.waiting for one in runs):.0f}",
            )  # fmt: skip
        self._keep("allocation", {f"{c.rule}, {c.order.value}, load {c.load}": r for c, r in found.items()})

    def sizes(self) -> None:
        """One, two and three dimensions of size."""
        self._head("order | rule | mean turnaround, s | median, s")
        orders = (Order.SJF, Order.SJF_2D, Order.SJF_3D, Order.HRRN)
        cases = [Case(rule, order, PREEMPTION_LOAD) for rule in ("rigid", "flexible") for order in orders]
        found = self._figures("allocation", cases)
        for case, runs in found.items():
            self._row(
                case.order.value, case.rule, _spread([one.mean_s for one in runs]),
                _spread([one.median_s for one in runs]),
            )  # fmt: skip
        self._keep("sizes", {f"{case.rule}, {case.order.value}": runs for case, runs in found.items()})

    def preemption(self) -> None:
        """Interactive applications beside batch, with and without preemption of elastic components."""
        self._head(
            "order | preemptive | interactive queued (median), s | batch queued (median), s | mean turnaround, s"
        )
        orders = ((Order.FIFO, False), (Order.SRPT, False), (Order.SRPT, True))
        cases = [Case("flexible", order, PREEMPTION_LOAD, True, preemptive) for order, preemptive in orders]
        found = self._figures("allocation", cases)
        for case, runs in found.items():
            self._row(
                case.order.value, "yes" if case.preemptive else "no",
                _spread([one.queued_interactive_s for one in runs]),
                _spread([one.queued_batch_s for one in runs]), _spread([one.mean_s for one in runs]),
            )  # fmt: skip
        named = {f"{c.order.value}{', preemptive' * c.preemptive}": runs for c, runs in found.items()}
        self._keep("preemption", named)

    def shaping(self) -> None:
        """Sizes that follow forecasts, in the loop of a scheduler."""
        self._head("mode | limit | forecaster | K1 | K2 | turnaround, s | ratio | slack | crashed | ended")
        found = self._each("shaping", shaped, CASES, SHAPED)
        base = found[CASES[0]]
        for case, runs in found.items():
            ratios = [one.mean_s / each.mean_s for one, each in zip(base, runs, strict=True)]
            self._row(
                case.mode.value, case.limit.value, case.forecaster, f"{case.k1:.0%}", f"{case.k2:.0f}",
                _spread([one.mean_s for one in runs]), _spread(ratios),
                f"{statistics.mean(one.slack_ratio for one in runs):.0%}",
                f"{statistics.mean(one.crashed_ratio for one in runs):.1%}",
                f"{statistics.mean(one.preempted for one in runs):.0f}",
            )  # fmt: skip
        self._keep("shaping", {
            f"{c.mode.value}, {c.limit.value}, {c.forecaster}, {c.k1:g}, {c.k2:g}": r for c, r in found.items()
        })  # fmt: skip

    def calibration(self) -> None:
        """The fleet's node model beside the detailed node, on 200 random co-locations."""
        self._head("seed | workloads | rank correlation | median error | 90th percentile")
        found = self._each("calibration", calibration_of, (CO_LOCATIONS,))[CO_LOCATIONS]
        for seed, each in enumerate(found):
            self._row(
                f"{seed}", f"{each.workloads}", f"{each.rank_correlation:.3f}", f"{each.median_error:.2%}",
                f"{each.p90_error:.1%}",
            )  # fmt: skip
        self._keep("calibration", {"200 co-locations": found})

    def placing(self) -> None:
        """Placement policies on one workload each seed, beside Alibaba's alignment."""
        self._placed("placing", self._each("placing", placed, POLICIES))

    def limits(self) -> None:
        """The alignment and N-sigma with limits on batch, which lower violations."""
        found = self._each("limits", limited_run, LIMITED)
        self._placed(
            "limits", {f"{policy}, batch within {limit:g}": r for (policy, limit), r in found.items()}
        )

    def _placed(self, name: str, found: Mapping[str, Sequence[PlacingFigures]]) -> None:
        self._head(
            "policy | CPUs in use | violations | not degraded | slower | hindered | batch, CPU h | batch waits, s "
            "| late"
        )
        for policy, runs in found.items():
            self._row(
                policy, _spread([one.fleet_ratio for one in runs]),
                f"{statistics.mean(one.violations for one in runs):.1%}",
                f"{statistics.mean(one.undegraded for one in runs):.1%}",
                f"{statistics.mean(one.slower for one in runs):.1%}",
                f"{statistics.mean(one.hindered for one in runs):.1%}",
                _spread([one.work_cpu_h for one in runs]), _spread([one.waited_s for one in runs]),
                f"{statistics.mean(one.missed for one in runs):.1%}",
            )  # fmt: skip
        self._keep(name, found)

    def scale(self) -> None:
        """Time and memory of the simulator and of one decision; every fleet in a separate process."""
        self._head("nodes | pods | simulated, h | CPU time, s | peak, MiB | decisions | median, ms | p99, ms")
        named = {}
        with ProcessPoolExecutor(1, max_tasks_per_child=1) as pool:
            asked = [(nodes, hours, JOBS_PER_H, "optum", cores) for nodes, hours, cores in FLEETS]
            for (_, hours, _, _, _), each in zip(
                asked, self._runs.of("scale", scaled, asked, pool), strict=True
            ):
                self._row(
                    f"{each.nodes}", f"{each.pods}", f"{hours:g}", f"{each.made_cpu_s + each.cpu_s:.1f}",
                    f"{each.peak_mib:.0f}", f"{each.decisions}", f"{each.decision_ms:.2f}",
                    f"{each.decision_p99_ms:.2f}",
                )  # fmt: skip
                named[f"{each.nodes} nodes, {each.pods} pods"] = [each]
        self._keep("scale", named)

    def deadlines(self) -> None:
        """3Sigma, its ablations, point estimates and priority on gangs with deadlines."""
        self._missed("deadlines", self._each("deadlines", planned_run, tuple(PlannedPolicy)))

    def samples(self) -> None:
        """3Sigma with histories of 5 to 50 jobs of each kind, beside perfect estimates."""
        found = self._each("samples", sampled_run, SAMPLES)
        self._missed(
            "samples", {f"n = {n}" if n else "point estimates, perfect": r for n, r in found.items()}
        )

    def staging(self) -> None:
        """Prophet beside CS, DRF and Tetris; ratios are to CS on the same seed."""
        self._head(
            "contention | scheduler | makespan, s | of CS | median execution of CS's | median completion of CS's "
            "| asked too much"
        )
        for kappa in KAPPAS:
            found = self._each("staging", staged_run, tuple(CONTESTANTS), kappa)
            base = found["CS"]
            for name, runs in found.items():
                pairs = list(zip(runs, base, strict=True))
                self._row(
                    f"{kappa:g}", name, _spread([one.makespan_s for one in runs]),
                    _spread([one.makespan_s / of.makespan_s for one, of in pairs]),
                    _spread([one.execution_s / of.execution_s for one, of in pairs]),
                    _spread([one.completion_s / of.completion_s for one, of in pairs]),
                    f"{statistics.mean(one.over_ratio for one in runs):.0%}",
                )  # fmt: skip
            self._keep(f"staging-{kappa:g}", found)

    def packing(self) -> None:
        """DistSched, its ablations and the policies of its comparison."""
        self._head(
            "policy | deadlines | missed | of Dist's | in time, core-h | best effort, core-h | latency, s | evicted "
            "| preempted | throttled"
        )
        found = self._each("packing", packed_run, tuple(PackedPolicy))
        base = [float(one.missed) for one in found[PackedPolicy.DISTRIBUTION]]
        for policy, runs in found.items():
            missed = [float(one.missed) for one in runs]
            deadlines = [float(one.deadlines) for one in runs]
            self._row(
                policy.value, f"{sum(deadlines):.0f}", _part(missed, deadlines, ".1%"), _part(missed, base, ".2f"),
                _spread([one.deadline_core_h for one in runs]), _spread([one.best_effort_core_h for one in runs]),
                _spread([one.latency_s for one in runs]), f"{sum(one.evictions for one in runs)}",
                f"{sum(one.preemptions for one in runs)}", f"{sum(one.throttled for one in runs)}",
            )  # fmt: skip
        self._keep("packing", {policy.value: runs for policy, runs in found.items()})

    def _missed(self, name: str, found: dict[Any, list[Any]]) -> None:
        """A row for each case. Ratios are to the first row."""
        self._head(
            "policy | deadlines | missed | of the first row's | in time, node-h | best effort, node-h | latency, s | "
            "preempted"
        )
        base = [float(one.missed) for one in next(iter(found.values()))]
        for case, runs in found.items():
            missed = [float(one.missed) for one in runs]
            deadlines = [float(one.deadlines) for one in runs]
            self._row(
                f"{case}", f"{sum(deadlines):.0f}", _part(missed, deadlines, ".1%"), _part(missed, base, ".2f"),
                _spread([one.deadline_node_h for one in runs]), _spread([one.best_effort_node_h for one in runs]),
                _spread([one.latency_s for one in runs]), f"{sum(one.preemptions for one in runs)}",
            )  # fmt: skip
        self._keep(name, found)

    def _figures(self, name: str, cases: Sequence[Case]) -> dict[Case, list[Figures]]:
        return self._each(name, figures, cases, self._count)

    def _each(
        self, name: str, function: Callable[..., Any], cases: Iterable[_K], *more: Any
    ) -> dict[_K, list[Any]]:
        """Results of ``function(case, seed, *more)`` by case, one for each seed."""
        given = list(cases)
        asked = [(case, seed, *more) for case in given for seed in range(self._seeds)]
        found = self._runs.of(name, function, asked)
        return {
            case: found[place * self._seeds : (place + 1) * self._seeds] for place, case in enumerate(given)
        }

    def _keep(self, name: str, found: Mapping[Any, Sequence[Any]]) -> None:
        self._runs.keep(
            name,
            [
                CaseRun(str(case), seed, each)
                for case, runs in found.items()
                for seed, each in enumerate(runs)
            ],
        )

    def _head(self, names: str) -> None:
        self._say(f"| {names} |")
        self._say("| " + " | ".join(["---"] * (names.count("|") + 1)) + " |")

    def _row(self, *cells: str) -> None:
        self._say(f"| {' | '.join(cells)} |")


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


def _part(happened: list[float], of: list[float], shape: str) -> str:
    """The ratio of two sums over the seeds, with its interval."""
    low, high = ratio_interval(happened, of)
    return f"{sum(happened) / max(1.0, sum(of)):{shape}} ({low:{shape}} to {high:{shape}})"


def _spread(values: list[float]) -> str:
    """Mean and standard deviation over the seeds."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3g} ± {deviation:.2g}"


if __name__ == "__main__":
    main()
