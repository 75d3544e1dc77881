"""Trade-off of missed time and batch work with an exactly known model: ORACLE's settings with a margin.

    python -m tools.bench.policies.frontier --out out/policies

An optimum lies on the edge of the targets, and in a run loads and needs wander. Here ORACLE searches for the best
settings for targets that are tighter by a margin (if none meets them, for the greatest score). The bench applies these
settings in its world, at once or a second late, and compares batch's work with the optimum without margin. Besides one
margin for all scenarios, a margin is chosen for each scenario with hindsight: the choice that misses least in total at
a wanted mean of batch's work. No policy that learns the host from samples knows as much.

Needs ``optima.jsonl`` of a bench that has run into the same folder.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tools.bench.policies import held, measure, oracle, results, scenarios
from tools.bench.policies.driver import run
from tools.bench.policies.oracle import Optimum, Situation
from tools.bench.policies.pool import Progress, Task, work
from tools.bench.policies.scene import Scenario

MARGINS: Final = (0.0, 0.03, 0.08, 0.15)
SEEDS: Final = 2
WANTED: Final = 0.90
"""Wanted mean of batch's work over the optimum's, at which missed time is minimised."""
_BIG: Final = 8
"""Number of actors from which a scenario is skipped, because its optimum is approximate and takes minutes per margin.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """Means per run of one scenario: seconds missed, and batch's good work over the optimum's."""

    scenario: str
    margin: float
    late: bool
    missed_s: float
    good: float


def with_margin(here: Situation, margin: float, parts: bool) -> Optimum:
    """The optimum for goals that are tighter by this margin; without one, the setting of the greatest score."""
    goals = tuple(goal.tightened(margin) if goal is not None else None for goal in here.goals)
    return oracle.best(replace(here, goals=goals), parts=parts)


def points(scenario: Scenario, margin: float, optima: Mapping[str, Optimum]) -> list[dict[str, object]]:
    """Missed time and batch work of ORACLE with this margin in this scenario, at once and late."""
    own = dict(optima)
    if margin > 0.0:
        for key, here in measure.situations(scenario).items():
            own[key] = with_margin(here, margin, scenario.partition)
    found: list[dict[str, object]] = []
    for late in (False, True):
        runs = [
            measure.measure(
                run(scenario, held.HeldPolicy(scenario, own, late=late), held.PERIOD_S, seed), optima
            )
            for seed in range(SEEDS)
        ]
        missed_s = statistics.fmean(r.excess_s for r in runs)
        good = statistics.fmean(r.good_of_oracle for r in runs)
        found.append(asdict(Point(scenario.name, margin, late, missed_s, good)))
    return found


def least_missed(known: Iterable[Point], wanted: float) -> tuple[float, float] | None:
    """The least sum of seconds missed at this mean of batch's work, with each scenario at its best margin.

    Computed with Lagrange multipliers, so it may slightly exceed the true minimum. None: no choice reaches that much
    work.
    """
    by_scenario: dict[str, list[Point]] = {}
    for point in known:
        by_scenario.setdefault(point.scenario, []).append(point)
    if not by_scenario:
        return None
    pairs = [pair for some in by_scenario.values() for pair in itertools.combinations(some, 2)]
    # The choice changes only where two points of a scenario have equal value.
    prices_s = {(a.missed_s - b.missed_s) / (a.good - b.good) for a, b in pairs if a.good != b.good}
    best: tuple[float, float] | None = None
    for price_s in (0.0, *(p * (1.0 + 1e-9) for p in prices_s if p > 0.0), 1e12):
        chosen = [
            min(some, key=lambda p: (p.missed_s - price_s * p.good, p.missed_s))
            for some in by_scenario.values()
        ]
        missed_s, good = sum(p.missed_s for p in chosen), statistics.fmean(p.good for p in chosen)
        if good >= wanted and (best is None or missed_s < best[0]):
            best = missed_s, good
    return best


def table(known: Sequence[Point], wanted: float = WANTED) -> str:
    """The table in Markdown."""
    lines = [
        "| margin | at once: missed | batch | a second late: missed | batch |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for margin in sorted({p.margin for p in known}):
        cells = [f"{margin:.0%}"]
        for late in (False, True):
            some = [p for p in known if p.margin == margin and p.late is late]
            cells += [
                f"{sum(p.missed_s for p in some):.0f} s",
                f"{statistics.fmean(p.good for p in some):.0%}",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    cells = [f"the best for each scenario, at {wanted:.0%}"]
    for late in (False, True):
        best = least_missed([p for p in known if p.late is late], wanted)
        cells += [f"{best[0]:.0f} s", f"{best[1]:.1%}"] if best is not None else ["-", "not reached"]
    return "\n".join([*lines, "| " + " | ".join(cells) + " |"])


def chosen_scenarios(known: Mapping[str, Any]) -> list[tuple[Scenario, dict[str, Optimum]]]:
    """Scenarios with batch, reachable targets and an exact optimum, each with its optima."""
    found = []
    for scenario in scenarios.standard():
        keys = list(measure.situations(scenario)) if scenario.batch and len(scenario.actors) < _BIG else []
        optima = {key: Optimum(**known[key]) for key in keys if key in known}
        if keys and len(optima) == len(keys) and all(optimum.feasible for optimum in optima.values()):
            found.append((scenario, optima))
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="tools.bench.policies.frontier", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/policies"), help="folder of a bench that has run"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes")
    options = parser.parse_args()
    optima = results.Lines(options.out / "optima.jsonl", results.code_digest(physics_only=True)).known
    if not optima:
        parser.error(
            f"{options.out}/optima.jsonl holds no optima of this code: run tools.bench.policies first"
        )
    kept = results.Lines(options.out / "frontier.jsonl", results.code_digest())
    tasks = []
    for scenario, own in chosen_scenarios(optima):
        for margin in MARGINS:
            key = f"{scenario.name}|{margin}"
            if key not in kept.known:
                tasks.append(Task(key, points, (scenario, margin, own), float(len(scenario.actors) ** 2)))
    progress = Progress()
    with ProcessPoolExecutor(options.jobs) as pool:
        work(pool, "frontier", kept, tasks, progress)
    known = [Point(**p) for some in kept.known.values() for p in some]
    if known:
        print(table(known))
    for key, why in progress.failed:
        print(f"could not be computed: {key}: {why}")
    return 1 if progress.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
