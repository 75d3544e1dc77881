"""The detector's figures: false alarms and delays, causes, antagonists, drops of load, quiet days, waves of load.

python -m tools.bench.detector [--sections verdict,power,significance,causes,culprits,drops,quiet,waves] [--seeds 10]
                               [--days 7] [--lives 30] [--lane-days 40] [--out FILE]

Every section appends its table to the report (Markdown) as soon as it is measured. On an idle core: causes about a
minute for ten seeds, significance about five, verdict and power a quarter of an hour each for 40 days a noise, seven
quiet days about ten minutes.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from random import Random
from statistics import mean, median, stdev

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from perphd.admission.settings import PolicySettings  # noqa: E402
from tools.bench.detector import blame, injected, power, quiet, significance, spikes, verdict  # noqa: E402
from tools.bench.detector.sections import Lines, Sections, measure  # noqa: E402
from tools.bench.detector.significance import Noise  # noqa: E402

LIFE_DAYS = 7
"""Days of one life."""


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{median(values):g} ({min(values):g} to {max(values):g})"


def of_significance(options: argparse.Namespace) -> Lines:
    """Measure the statistic behind the verdict on noise with heavy tails."""
    settings, noise = PolicySettings(), Noise()
    lives = [significance.false_alarms(LIFE_DAYS, noise, seed, settings) for seed in range(options.lives)]
    first = [float(days[0]) for days in lives]
    later = [mean(days[1:]) for days in lives]

    def told(rates: list[float]) -> str:
        error = stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else 0.0
        return f"{mean(rates):.2f} (standard error {error:.2f})"

    lines = [
        f"{options.lives} lives of {LIFE_DAYS} days of clean noise, each with a seed of its own: {told(later)} false "
        f"alarms a day from the second day on, {told(first)} on the first, on which the threshold is still that for "
        f"normal noise (configured {settings.false_alarms_per_day:g}).",
        "",
        "| shift, sd | median samples to the alarm, over seeds (range) | p90 | missed |",
        "| --- | --- | --- | --- |",
    ]
    for shift in (1.0, 2.0, 3.0):
        runs = [significance.delays(shift, 40, noise, 100 + seed, settings) for seed in range(options.seeds)]
        every = sorted(d for found in runs for d in found)
        missed = sum(d == float("inf") for d in every) / len(every)
        medians = [median(found) for found in runs]
        lines.append(
            f"| {shift:g} | {median(every):g} ({min(medians):g} to {max(medians):g}) "
            f"| {every[int(0.9 * len(every))]:g} | {missed:.0%} |"
        )
    return lines


def of_causes(options: argparse.Namespace) -> Lines:
    """Measure injections of one resource."""
    lines = [
        "Runs in which the LRA truly lost more than 10 % of its work or 50 % of its p95 count as harmed. "
        "Right: the cause that the verdict names at once, and five samples later.",
        "",
        "| taken away | harmed / runs | found | median samples to it | right at once | right later | said otherwise |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    right = harmed = first = 0
    for name, make in injected.INJECTIONS.items():
        runs = [injected.run(make(Random(f"{name}:{seed}")), seed) for seed in range(options.seeds)]
        hurt = [r for r in runs if r.suffered < 1.0]
        found = [r for r in hurt if r.delay_samples is not None]
        good = sum(r.later is r.cause for r in hurt)
        other = Counter(str(r.later) for r in hurt if r.later is not r.cause)
        delays = [float(r.delay_samples) for r in found if r.delay_samples is not None]
        early = sum(r.first is r.cause for r in hurt)
        right, harmed, first = right + good, harmed + len(hurt), first + early
        lines.append(
            f"| {name} | {len(hurt)} / {len(runs)} | {len(found)} | {spread(delays) if delays else '-'} "
            f"| {early} | {good} | {', '.join(f'{k} {v}' for k, v in other.items()) or '-'} |"
        )
        print(lines[-1], flush=True)
    share = f"**{right / harmed:.0%}**" if harmed else "-"
    lines += [
        "",
        f"Right in {share} of {harmed} harmed runs (at once: {first / max(harmed, 1):.0%}); wanted: 90 %.",
    ]
    return lines


def of_culprits(options: argparse.Namespace) -> Lines:
    """Five candidates."""
    lines = [
        "| run | harm by | samples with the right name | wrong | nobody |",
        "| --- | --- | --- | --- | --- |",
    ]
    total: Counter[str] = Counter()
    for seed in range(options.seeds):
        kind, said = blame.run(seed)
        total += said
        lines.append(f"| {seed} | {kind} | {said['right']} | {said['wrong']} | {said['nobody']} |")
        print(lines[-1], flush=True)
    share = total["right"] / max(sum(total.values()), 1)
    return [
        *lines,
        "",
        f"The right one of {blame.CANDIDATES} is named in **{share:.0%}** of the samples; wanted: 90 %.",
    ]


def of_drops(options: argparse.Namespace) -> Lines:
    """Measure falls of load."""
    found = [quiet.drops(seed) for seed in range(options.seeds)]
    falls, called, grown = (sum(f[n] for f in found) for n in (0, 1, 2))
    return [
        f"{falls} falls of load to a half, a fifth, a twentieth: **{called}** called degraded, {grown} steps."
    ]


def of_quiet(options: argparse.Namespace) -> Lines:
    """Measure days without an antagonist."""

    def tell(so_far: quiet.Quiet, day: float) -> None:
        print(f"day {day:.0f}: {so_far.actions} actions, {so_far.moves} changes", flush=True)

    result = quiet.days(options.days, 1, tell=tell)
    health = ", ".join(f"{k} {v}" for k, v in result.health.items())
    return [
        f"{result.days:g} days of diurnal load at 1 Hz, enforcing: **{result.actions}** actions, "
        f"{result.moves} changes of settings; samples: {health}; took {result.seconds:.0f} s.",
        *result.first,
    ]


def of_waves(options: argparse.Namespace) -> Lines:
    """Compare waves of load with and without forecasts."""
    lines = [
        "| load | seed | forecast | target missed | batch work | prepared |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, trace in spikes.traces().items():
        for seed in range(min(options.seeds, 3)):
            for forecast in (False, True):
                w = spikes.waves(trace, seed, forecast)
                on = "on" if forecast else "off"
                lines.append(f"| {name} | {seed} | {on} | {w.missed:.1%} | {w.batch:.1f}/s | {w.prepared} |")
                print(lines[-1], flush=True)
    return lines


def of_verdict(options: argparse.Namespace) -> Lines:
    """False alarms of the verdict over the grid of noises: at the default tolerances, and with tighter targets."""
    lines = []
    for period_s in (1.0, 0.25):
        for nearer in (None, 1.0):
            lines += verdict.table(options.per_day, period_s, options.lane_days, nearer)
    return lines


def of_power(options: argparse.Namespace) -> Lines:
    """Detection at equal false alarms."""
    return power.table(power.CELLS, options.per_day, options.lane_days / options.lanes, options.lanes)


SECTIONS: Sections = {
    "verdict": ("False alarms of the verdict", of_verdict),
    "power": ("Detection at equal false alarms", of_power),
    "significance": ("Heavy tails: false alarms and delays", of_significance),
    "causes": ("Cause", of_causes),
    "culprits": ("Culprit", of_culprits),
    "drops": ("Falls of load", of_drops),
    "quiet": ("Quiet days", of_quiet),
    "waves": ("Load foreseen", of_waves),
}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.detector", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--days", type=float, default=7.0)
    parser.add_argument("--lives", type=int, default=30, help=f"of {LIFE_DAYS} days, on heavy tails")
    parser.add_argument("--lane-days", type=float, default=40.0, help="days per noise, for verdict and power")
    parser.add_argument("--lanes", type=int, default=100, help="applications side by side, for power")
    parser.add_argument("--per-day", type=float, default=1.0, help="configured rate, for verdict and power")
    measure(parser, SECTIONS)


if __name__ == "__main__":
    main()
