"""Benches of the batch queue: tables for docs/benchmarks.md.

python -m tools.bench.batch_queue [--seeds 3] [--hours 2] [--only schedulers,calibration,day,host-day,overcommit]
"""

from __future__ import annotations

import argparse
import csv
import lzma
import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from perphd.batch.admission import Reliability
from perphd.domain.workload import Mode
from perphd.qos.offers import followed, with_use
from perphd.qos.overcommit import Backtest
from tools.bench.batch_queue.host_day import DayOutcome
from tools.bench.batch_queue.host_day import day as host_day
from tools.bench.batch_queue.host_rules import day_by, static_reservation, suppression
from tools.bench.batch_queue.jobs import GIB, generated
from tools.bench.batch_queue.node import CYCLE_S, Node, Outcome, Policy
from tools.bench.batch_queue.spread import ratio_interval

CPUS, MEMORY = 32.0, 128.0 * GIB
AHEAD_S: Final = 7200.0
"""Time for which the node continues after the last arrival."""
DAY_LOAD: Final = 0.6
"""Load that the jobs of a day offer, beside LRAs that use 0.1 to 0.5 of the node."""
DAY_SIZE: Final = 0.3
"""Size of a day's jobs: about 2,000 of them produce that load."""
ALONE: Final = "alone"
DAY_POLICIES: Final = (ALONE, "fifo", "suppression", "perphd", "observe")
ONCE: Final = (ALONE, "observe")
"""Run with the first seed only."""
LEAST_WINDOWS: Final = 100
PEAK: Final = 0.7
"""Assumed peak of a series in arbitrary units, as a share of the host."""
SCHEDULERS: Final = tuple(each for each in Policy if each not in (Policy.FIFO, Policy.SUPPRESSED))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="tools.bench.batch_queue", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--policies", type=lambda text: text.split(","), default=None, help="DISTRIBUTION,POINT,..."
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--load", type=float, default=1.4)
    parser.add_argument(
        "--day-hours", type=float, default=24.0, help="hours of host-day; 12 cover every load once"
    )
    parser.add_argument("--day-from", type=float, default=0.0, help="the hour at which host-day begins")
    parser.add_argument(
        "--day-policies", type=lambda text: text.split(","), default=DAY_POLICIES, help=",".join(DAY_POLICIES)
    )
    parser.add_argument("--overestimated", type=float, default=0.0, help="share of jobs that end early")
    given = os.environ.get("PERPHD_DATA")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(given) if given else None,
        help="folder of public series (PERPHD_DATA)",
    )
    parser.add_argument("--only", type=lambda text: text.split(","), default=["schedulers"])
    options = parser.parse_args()
    if "overcommit" in options.only and options.data is None:
        parser.error("overcommit needs --data, or PERPHD_DATA: the folder of public series")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with ProcessPoolExecutor(options.processes) as pool:
        if "schedulers" in options.only:
            chosen = [Policy[name] for name in options.policies] if options.policies else SCHEDULERS
            schedulers(pool, seeds, options.hours, options.load, chosen, options.overestimated)
        if "calibration" in options.only:
            calibration(pool, seeds, options.hours, options.load)
        if "host-day" in options.only:
            host_days(pool, seeds, options.day_hours, options.day_from, options.day_policies)
    if "day" in options.only:
        day(seeds)
    if "overcommit" in options.only:
        overcommit(options.data)


def schedulers(
    pool: ProcessPoolExecutor,
    seeds: range,
    hours: float,
    load: float,
    policies: Sequence[Policy],
    overestimated: float,
) -> None:
    """Every policy on the same jobs."""
    print(
        f"| policy | SLO jobs | missed | more than {policies[0]} | SLO core-h | best effort core-h | latency s | "
        "preempted | evicted |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    diagrams: list[Outcome] = []
    first: list[Outcome] = []
    for policy in policies:
        runs = [pool.submit(_scheduled, policy, seed, hours, load, 0.0, overestimated) for seed in seeds]
        found = [run.result() for run in runs]
        diagrams = found if policy is Policy.DISTRIBUTION else diagrams
        first = first or found
        _line(policy, found, first)
    _diagrams(diagrams)


def calibration(pool: ProcessPoolExecutor, seeds: range, hours: float, load: float) -> None:
    """Predictions of a queue that has learned for an hour, since its calibration survives the daemon."""
    runs = [
        pool.submit(_scheduled, Policy.DISTRIBUTION, seed, 1.0 + hours, load, judged_after_s=3600.0)
        for seed in seeds
    ]
    _diagrams([run.result() for run in runs])


def _diagrams(found: list[Outcome]) -> None:
    for name, each in (
        ("CPU", [one.cpu_reliability for one in found]),
        ("memory", [one.memory_reliability for one in found]),
    ):
        reliability(name, each)


def _scheduled(
    policy: Policy,
    seed: int,
    hours: float,
    load: float,
    judged_after_s: float = 0.0,
    overestimated: float = 0.0,
) -> Outcome:
    work = generated(seed, hours, load, CPUS, MEMORY, overestimated=overestimated)
    return Node(policy, work, CPUS, MEMORY, judged_after_s=judged_after_s).run(AHEAD_S)


def _line(policy: Policy, found: list[Outcome], first: list[Outcome]) -> None:
    slo, missed = [one.slo for one in found], [one.missed for one in found]
    more = [one.missed - before.missed for one, before in zip(found, first, strict=True)]
    best = sum(one.best_effort for one in found)
    latency_s = sum(one.latency_s for one in found) / best if best else math.nan
    print(
        f"| {policy} | {sum(slo)} | {_share(missed, slo)} | {_share(more, slo)} | "
        f"{sum(one.slo_core_h for one in found):.0f} | "
        f"{sum(one.best_effort_core_h for one in found):.0f} | {latency_s:.0f} | "
        f"{sum(one.preemptions for one in found)} | {sum(one.evictions for one in found)} |",
        flush=True,
    )


def _share(happened: Sequence[float], of: Sequence[float]) -> str:
    """A share of all seeds with its interval."""
    low, high = ratio_interval(happened, of)
    return f"{sum(happened) / max(1.0, sum(of)):.1%} ({low:.1%} to {high:.1%})"


def reliability(name: str, diagrams: list[Reliability]) -> None:
    """Predicted P(over) beside the observed share, by decile, with its interval over seeds."""
    print(f"\n| P({name} over), predicted | happened | 95 % interval | candidates, in seeds |")
    print("| --- | --- | --- | --- |")
    for n in range(10):
        counts = [each.counts[n] for each in diagrams]
        if sum(counts):
            predicted = sum(each.predicted[n] for each in diagrams) / sum(counts)
            happened = [each.happened[n] for each in diagrams]
            low, high = ratio_interval(happened, counts)
            print(
                f"| {predicted:.3f} | {sum(happened) / sum(counts):.3f} | {low:.3f} to {high:.3f} | "
                f"{sum(counts)} in {sum(count > 0 for count in counts)} |"
            )


def host_days(
    pool: ProcessPoolExecutor, seeds: range, hours: float, from_hour: float, policies: Sequence[str]
) -> None:
    """A day on the simulated host: alone, with the daemon's own agent in both modes, and under simpler rules."""
    print(
        "| policy | seed | db on target | web on target | CPUs used | jobs done | SLO missed | "
        "best-effort latency s | preempted |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    runs = [
        (policy, seed, pool.submit(_host_day, policy, seed, hours, from_hour))
        for policy in policies
        for seed in (seeds[:1] if policy in ONCE else seeds)
    ]
    for policy, seed, run in runs:
        one = run.result()
        targets = " | ".join(f"{share:.2%}" for share in one.on_target.values())
        print(
            f"| {policy} | {seed} | {targets} | {one.busy:.1%} | {one.done} of {one.jobs} | "
            f"{one.missed / max(1, one.slo):.1%} of {one.slo} | {one.latency_s / max(1, one.best_effort):.0f} | "
            f"{one.preempted} |",
            flush=True,
        )


def _host_day(policy: str, seed: int, hours: float, from_hour: float) -> DayOutcome:
    match policy:
        case "fifo":
            return day_by(static_reservation(), seed, hours, from_hour)
        case "suppression":
            return day_by(suppression(), seed, hours, from_hour)
        case "observe":
            return host_day(seed, Mode.OBSERVE, True, hours, from_hour)
    return host_day(seed, Mode.ENFORCE, policy != ALONE, hours, from_hour)


def day(seeds: range) -> None:
    """A day with LRAs that follow the hour, and about 2,000 jobs."""
    others = tuple(
        CPUS * (0.3 - 0.2 * math.cos(2 * math.pi * (n * CYCLE_S / 3600.0 - 3.0) / 24.0))
        for n in range(int(86400 / CYCLE_S))
    )
    print(
        "| policy | jobs done | latency h | CPUs used by jobs | all used | SLO missed | evicted | CPUs short |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for policy in (Policy.DISTRIBUTION, Policy.FIFO, Policy.SUPPRESSED):
        for seed in seeds:
            work = generated(seed, 24.0, DAY_LOAD, CPUS, MEMORY, DAY_SIZE)
            one = Node(policy, work, CPUS, MEMORY, others).run(6 * 3600.0)
            done = one.best_effort + one.slo - one.unfinished
            busy = (one.used_core_s + one.others_core_s) / (CPUS * one.seconds)
            print(
                f"| {policy} | {done} of {len(work.works)} | {one.latency_s / max(1, one.best_effort) / 3600.0:.2f} | "
                f"{one.used_core_s / (CPUS * one.seconds):.1%} | {busy:.1%} | {one.missed / max(1, one.slo):.1%} | "
                f"{one.evictions} | {one.crowded_s / one.seconds:.2%} |",
                flush=True,
            )


def overcommit(data: Path) -> None:
    """Copper's offers on public series: share of excessive offers, and offered amount."""
    print("| series | windows | too much, CPU | given, CPU | too much, memory | given, memory |")
    print("| --- | --- | --- | --- | --- | --- |")
    machines = _machines(data / "alibaba2018/machine_usage_rows_with_mem_gps_mkpi.csv.xz")
    for name, series in [*_series(data), (f"Alibaba 2018, {len(machines)} single machines", machines)]:
        offers = []
        for rows in series:
            offer = followed(1.0, 1.0)
            for cpu, memory in rows:
                offer = with_use(offer, 300.0, cpu, memory)
            offers.append(offer)
        cpus, held = (
            [getattr(each, name).learned.backtest for each in offers] for name in ("cpus", "memory")
        )
        print(f"| {name} | {sum(each.windows for each in cpus)} | {_shares(cpus)} | {_shares(held)} |")


def _shares(tests: list[Backtest]) -> str:
    """Share of excessive offers, and the offered share of reservations."""
    windows, reserved = sum(each.windows for each in tests), sum(each.reserved for each in tests)
    return f"{sum(each.exceeded for each in tests) / windows:.2%} | {sum(each.given for each in tests) / reserved:.1%}"


def _machines(path: Path) -> list[list[tuple[float, float]]]:
    """The peaks of windows of five minutes of every machine that has at least a hundred of them."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    with lzma.open(path, "rt") as file:
        for row in csv.DictReader(file):
            windows = found.setdefault(row["machine_id"], {})
            number = int(row["time_stamp"]) // 300
            cpu, memory = windows.get(number, (0.0, 0.0))
            used = float(row["cpu_util_percent"]) / 100.0, float(row["mem_util_percent"]) / 100.0
            windows[number] = max(cpu, used[0]), max(memory, used[1])
    return [[each[n] for n in sorted(each)] for each in found.values() if len(each) >= LEAST_WINDOWS]


def _series(data: Path) -> list[tuple[str, list[list[tuple[float, float]]]]]:
    """(name, series of peaks of windows of five minutes as shares of the host).

    A series in other units peaks at ``PEAK``.
    """
    google = _rows(data / "google2019/instance_usage_grouped_300_seconds_month.csv", "avg_cpu", "avg_mem")
    azure = _rows(data / "azure_traces/azure_v2_fleet_cpu_mem_300s.csv", "cpu_usage", "assigned_mem")
    fleet = _rows(
        data / "alibaba2018/machine_usage_day_1_fleet_mean_10s.csv", "cpu_util_percent", "mem_util_percent"
    )
    most = [max(row[n] for row in azure) / PEAK for n in (0, 1)]
    windows = [fleet[n : n + 30] for n in range(0, len(fleet) - 29, 30)]
    return [
        ("Google 2019, a month, mean of instances", [google]),
        ("Azure 2019, all virtual machines", [[(cpu / most[0], memory / most[1]) for cpu, memory in azure]]),
        (
            "Alibaba 2018, a day, mean of machines",
            [
                [
                    (max(row[0] for row in each) / 100.0, max(row[1] for row in each) / 100.0)
                    for each in windows
                ]
            ],
        ),
    ]


def _rows(path: Path, *columns: str) -> list[tuple[float, float]]:
    with path.open() as file:
        return [(float(row[columns[0]]), float(row[columns[1]])) for row in csv.DictReader(file)]


if __name__ == "__main__":
    main()
